#pragma once

#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "plan/machine.hpp"
#include "plan/memory.hpp"
#include "plan/simulation.hpp"
#include "plan/workload.hpp"
#include "state/shard.hpp"
#include "train/memory/device_demand.hpp"
#include "train/memory/room.hpp"

namespace offstage::train {

/// The run whose steps are simulated. Members by reference must outlive the call.
struct StepFacts {
  state::ShardMap const& map;
  int rank{};  ///< rank whose steps they are
  Room const& room;
  plan::MemoryPlan const& memory;
  DeviceDemand const& device;
  double share{};  ///< the device's share of the update
};

/// The rank's part of every resource, while all ranks of its node work.
[[nodiscard]] plan::Machine machine_of(config::RunConfig const& config, StepFacts const& facts);
[[nodiscard]] plan::Workload workload_of(config::RunConfig const& config, StepFacts const& facts);
[[nodiscard]] plan::Schedule schedule_of(config::RunConfig const& config, StepFacts const& facts);

/// Arguments of a simulation. The machine is machine_of's unless it is given.
struct StepSimulation {
  plan::Machine const* machine{};
  /// Gets plan::simulate_events; null: they are not wanted.
  std::vector<plan::SimulatedEvent>* events{};
  plan::Detail detail{};
};

/// Predicts a step of the configuration. Work with an unknown rate takes no time. Updates that
/// began under backward are made again as often as plan.clip-rate says. update.overlap=auto is the
/// quicker of both ways, if versions are kept.
[[nodiscard]] plan::Prediction foresee_step(config::RunConfig const& config, StepFacts const& facts,
                                            StepSimulation const& by = {});
/// The least time that the step takes.
[[nodiscard]] plan::Bound least_step(config::RunConfig const& config, StepFacts const& facts);

}  // namespace offstage::train
