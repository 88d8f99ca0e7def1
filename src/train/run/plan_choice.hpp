#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "device/device.hpp"
#include "plan/share.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"
#include "train/forecast/remedies.hpp"
#include "train/memory/room.hpp"
#include "train/run/position.hpp"
#include "train/saves/cadence.hpp"
#include "train/step/step_runner.hpp"

namespace offstage::train {

/// Has a new start in the same process go on from the newest checkpoint. One that the user named is
/// spared by its saves.
void go_on_from_newest(config::CheckpointConfig& checkpoint);

/// A run's part in plan.choose=on: the configuration with which it begins, and the decision whether
/// another one is worth a new start. Without plan.choose, the advice at the run's end. T is
/// numerics.dtype.
template <class T>
class PlanChoice {
 public:
  /// `config` is the run's, before anything was chosen. All three must outlive this object.
  PlanChoice(config::RunConfig& config, mpi::Communicator const& comm, Cadence const& cadence)
      : config_{config}, comm_{comm}, cadence_{cadence}, given_{config} {}

  /// Measures the rates that nobody gave, and writes rank 0's choice to the run's configuration.
  /// Returns, on rank 0, the header's lines on it. Collective. Errors: mpi::AgreedError.
  [[nodiscard]] std::vector<std::string> choose(device::Device& device, state::RankLink& link,
                                                state::ShardMap const& map, Room const& room);
  /// The configuration for a new start, if the rates of the steps so far make another choice worth
  /// one. It is the given configuration with the measured rates. The function looks after some
  /// steps only. Rank 0 decides for all, and logs the rates that have changed. Collective. Errors:
  /// mpi::AgreedError.
  [[nodiscard]] std::optional<config::RunConfig> look_at_rates(RunProgress const& progress,
                                                               StepRunner<T> const& runner);
  /// Sentences on the bounds of the steps, by the rates that were given or reached; none after few
  /// steps. Not collective. Never fails: a warning says why there is no advice.
  [[nodiscard]] std::vector<std::string> advice(RunProgress const& progress,
                                                StepRunner<T> const& runner, Seconds reached) const;

 private:
  /// Logs the rates that have changed. Returns true if the run is to start anew with `config`.
  [[nodiscard]] bool gains(config::RunConfig const& config, std::vector<std::string> const& moved,
                           RunProgress const& progress, state::ShardMap const& map) const;

  config::RunConfig& config_;
  mpi::Communicator const& comm_;
  Cadence const& cadence_;
  config::RunConfig const given_;
  plan::UpdateRates planned_rates_;  ///< rates of a rank by which the choice was made
  Room room_;                        ///< room by which the choice was made
};

}  // namespace offstage::train
