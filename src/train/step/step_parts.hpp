#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "device/device.hpp"
#include "device/memory_counter.hpp"
#include "launch/shortage.hpp"
#include "model/transformer.hpp"
#include "parameters/node_memory.hpp"
#include "parameters/working_parameters.hpp"
#include "plan/memory.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/trace/trace.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"
#include "train/memory/device_demand.hpp"
#include "train/memory/run_memory.hpp"
#include "train/memory/update_shape.hpp"
#include "train/offload/offload.hpp"
#include "train/step/communication_row.hpp"
#include "train/step/step_update.hpp"
#include "update/device_lane.hpp"
#include "update/gradients/held_gradients.hpp"
#include "update/gradients/step_gradients.hpp"

namespace offstage::cudnn {
class Attention;
}

namespace offstage::train {

/// Gets the needs of the run on this node once they are known, before state and gradients take
/// their memory. Collective.
using OnPlan = std::function<void(launch::Needs const&)>;

/// Parts with which the steps of one rank are made. T is the type of working copy, activations and
/// gradients.
///
/// Lifetime:   members end in the reverse of their order, because each may use those before it.
///             They are made in this order, except for a copy that lives on the device, which is
///             made before memory is planned.
/// Memory:     everything is allocated at construction, within the memory plan.
/// Collective: construction. Errors there: mpi::AgreedError for what a user can mend.
template <class T>
struct StepParts {
  /// `attention` is cuDNN's plans for the model, whose workspace is
  /// config.device.attention_workspace; null: Offstage's own kernels. `config`, `comm` and
  /// `attention` must outlive this object.
  StepParts(config::RunConfig const& config, mpi::Communicator const& comm,
            std::unique_ptr<device::Device> device, std::unique_ptr<state::RankLink> link,
            OnPlan const& on_plan, cudnn::Attention* attention);
  /// Waits for the device's queued work before anything ends.
  ~StepParts();
  StepParts(StepParts const&) = delete;
  StepParts& operator=(StepParts const&) = delete;

  /// Makes a trace of this rank, named after `what`. Null without run.trace.
  [[nodiscard]] std::unique_ptr<trace::Trace> make_trace(char const* what) const;
  /// Returns the device memory that this rank takes, as planned.
  [[nodiscard]] DeviceDemand device_plan() const;
  /// Returns the number of trips of an update that go on at a time.
  [[nodiscard]] int workers() const;

  config::RunConfig const& config;
  mpi::Communicator const& comm;
  std::unique_ptr<device::Device> device;
  std::unique_ptr<device::Stream> stream;
  std::unique_ptr<state::RankLink> link;
  state::ShardMap map;
  Bytes resident_before;  ///< memory of the process before the members below were made
  int nodes{};
  std::unique_ptr<trace::Trace> trace;            ///< null unless run.trace
  std::optional<CommunicationRow> communication;  ///< none unless run.trace
  std::optional<RunMemory> run_memory;
  plan::MemoryPlan memory;
  int layer_slots{};                                     ///< as RunMemory::layer_slots
  std::unique_ptr<device::MemoryCounter> device_memory;  ///< null unless run.trace
  std::vector<state::Subgroup> subgroups;
  std::unique_ptr<parameters::NodeMemory> node_memory;  ///< null unless parameters.home=node
  std::unique_ptr<Offload> offload;
  std::unique_ptr<parameters::WorkingParameters<T>> copy;
  std::unique_ptr<model::Transformer<T>> model;
  /// Null: no activations leave the device. It may still copy the model's memory.
  std::unique_ptr<state::ActivationStore> activations;
  std::unique_ptr<update::StepGradients<T>> gradients;
  std::unique_ptr<update::DeviceLane> lane;     ///< null: no update needs it
  std::unique_ptr<update::HeldGradients> held;  ///< null: no gradient stays on the device
  std::optional<StepUpdate<T>> update;  ///< ends the threads that the members above have in common

 private:
  /// Each function makes the members that its name says, on this rank alone.
  void make_model(cudnn::Attention* attention, Room const& room);
  void make_memory_plan();
  void make_activations();
  void make_copy();
  void make_gradients();
  [[nodiscard]] UpdateShape make_update_memory();
  [[nodiscard]] UpdateShape shape_of_updates() const;
};

}  // namespace offstage::train
