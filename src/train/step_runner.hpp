#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/store.hpp"
#include "data/dataset.hpp"
#include "device/device.hpp"
#include "launch/shortage.hpp"
#include "model/transformer.hpp"
#include "parameters/working_parameters.hpp"
#include "plan/memory.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/trace/trace.hpp"
#include "state/initialize.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"
#include "train/metrics.hpp"
#include "train/offload.hpp"
#include "train/overlap_choice.hpp"
#include "train/run_config.hpp"
#include "train/shared_update.hpp"
#include "update/device_memory.hpp"
#include "update/gradient_accumulator.hpp"
#include "update/held_gradients.hpp"

namespace offstage::train {

/// What one step did, the same on all ranks but for times and traffic.
struct StepResult {
  double loss{};
  double grad_norm{};              ///< of the mean gradient, before clipping
  bool skipped{};                  ///< loss or norm was not finite: nothing was changed
  std::int64_t counted_targets{};  ///< of all ranks: targets that are not ignored
  Seconds forward{}, backward{}, update{};
  Bytes read_bytes{}, write_bytes{};  ///< this rank's storage traffic, that of gradients included
  StorageStep storage{};              ///< this rank's
  ShareStep share{};                  ///< this rank's
};

/// One rank's model, state and gradients, and the straight line of one step through them. T is the
/// type of working copy, activations and gradients.
///
/// Collective: construction and every member.
/// Memory:     everything is allocated at construction, within the memory plan.
/// Errors:     construction throws mpi::AgreedError for what a user can mend.
template <class T>
class StepRunner {
 public:
  /// Told what the run wants of this node once that is known, before state and gradients take their
  /// memory. Collective.
  using OnPlan = std::function<void(launch::Needs const&)>;

  StepRunner(RunConfig const& config, mpi::Communicator const& comm,
             std::unique_ptr<device::Device> device, std::unique_ptr<state::RankLink> link,
             OnPlan const& on_plan);
  /// Ends all threads, before what they wait for.
  ~StepRunner();
  StepRunner(StepRunner const&) = delete;
  StepRunner& operator=(StepRunner const&) = delete;

  /// Fills the state with zero moments and the weights of `first_weights`, or the seed's if that is
  /// null.
  void initialize(state::ParameterReader* first_weights);
  [[nodiscard]] checkpoint::OnSubgroup fill_working_copy();
  /// The trace has a file from now on, if there is to be one: nothing can refuse the run any more. Not
  /// collective. Errors: IoError of trace::Trace::open.
  void open_trace();

  /// One step over the global batch whose first sequence is sample `first_sample`. `optimizer_step`
  /// is AdamW's t, counted from 1. `loss_scale`, a power of two, changes no bits unless numbers leave
  /// the range of T.
  StepResult step(data::Dataset const& data, std::int64_t first_sample, double learning_rate,
                  std::int64_t optimizer_step, double loss_scale);
  /// Waits for what the last update left to go on under the next forward: before the state is read or
  /// saved. Errors: those of the update.
  void finish_update() { update_->finish(); }
  /// Mean loss over `micro_batches` micro-batches from the start of the file, in order.
  double validate(data::Dataset const& data, std::int64_t micro_batches);

  [[nodiscard]] state::ShardMap const& map() const noexcept { return map_; }
  [[nodiscard]] std::vector<state::Subgroup> const& subgroups() const noexcept {
    return subgroups_;
  }
  [[nodiscard]] tiers::Tiers& tiers() noexcept { return offload_->state(); }
  [[nodiscard]] std::vector<PathFacts> path_facts() const { return offload_->facts(); }
  [[nodiscard]] device::Device const& device() const noexcept { return *device_; }
  [[nodiscard]] plan::MemoryPlan const& memory_plan() const noexcept { return memory_; }
  /// What of this rank lives where, beside the limits.
  [[nodiscard]] std::vector<std::string> memory_table() const;
  [[nodiscard]] Bytes host_memory_limit() const noexcept { return host_memory_limit_; }
  [[nodiscard]] int nodes() const noexcept { return nodes_; }
  /// What tiers.host-memory bounds, as measured: the node's sum of peak resident memory, less what
  /// was resident before construction and the emulated device's arena.
  /// Collective.
  [[nodiscard]] Bytes host_memory_peak() const;
  /// What device.memory bounds: the most that any rank had taken at a time. Collective.
  [[nodiscard]] Bytes device_memory_peak() const { return comm_.maximum(device_->peak()); }
  /// Layers that are brought to the device at a time; 0: none has to be.
  [[nodiscard]] int parameter_slots() const noexcept { return parameter_slots_; }

 private:
  [[nodiscard]] launch::Needs needs_of(mpi::Communicator const& node) const;
  /// Of a rank, in the memory plan and taken before the state's.
  [[nodiscard]] Bytes gathering_bytes() const;
  /// Device memory of a rank that is taken after the plan is made: by all but parameters on their way, and
  /// with them, as far as it is an emulated device's and therefore host memory.
  [[nodiscard]] Bytes device_bytes_beside() const;
  [[nodiscard]] Bytes device_bytes_to_come() const;
  /// How many layers that are brought to the device it has room for; as many as on the rank with least.
  [[nodiscard]] int count_parameter_slots() const;
  [[nodiscard]] std::unique_ptr<trace::Trace> make_trace() const;
  /// Knows what is on the device for good. Null without a trace.
  [[nodiscard]] std::unique_ptr<update::DeviceMemory> make_device_memory();
  /// Activations were in use from then on, until now.
  void tell_of_activations(trace::Clock::time_point from);
  /// Of a step, beside its result.
  struct Now {
    double learning_rate{};
    std::int64_t optimizer_step{};
    double loss_scale{};
    std::int64_t first_sample{};
  };
  /// Forward and backward of this rank's micro-batches.
  void run_micro_batches(data::Dataset const& data, Now const& now, StepResult& result);
  /// The step's loss, once every forward is done; `losses` are this rank's.
  void agree_on_loss(std::span<double const> losses, StepResult& result);
  /// Before the backward of a round, of a step's `first` or a later one.
  void begin_gradients(int active, bool first, bool last);
  /// Before the last backward: the update by the step that it will be if nothing is clipped.
  void begin_ahead(Now const& now, StepResult const& result);
  /// Once the norm is known: all subgroups are updated, or none; what began is confirmed, done again or undone.
  void update_state(Now const& now, StepResult& result);
  /// These subgroups' parameters, from the state as it is.
  void rebuild_parameters(std::span<tiers::Key const> subgroups);
  [[nodiscard]] kernels::AdamwStep adamw(Now const& now, StepResult const& result,
                                         double clip) const;
  /// The mean gradient is what was accumulated times this.
  [[nodiscard]] double gradient_scale(Now const& now, StepResult const& result) const;
  [[nodiscard]] update::GradientSource gradient_source();
  [[nodiscard]] update::ParameterTargets parameter_targets();
  [[nodiscard]] int workers() const;
  /// Collective. Errors: mpi::AgreedError: update.overlap=on, but that is not possible.
  [[nodiscard]] OverlapChoice make_overlap() const;
  /// Device memory for gradients, of what is free now when `taken` more is in use.
  [[nodiscard]] Bytes room_for_gradients(UpdateShape const& shape, Bytes taken) const;

  RunConfig const& config_;
  mpi::Communicator const& comm_;
  std::int64_t micro_batches_;  ///< per step, all ranks
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<state::RankLink> link_;
  state::ShardMap map_;
  std::vector<int> forward_layers_;      ///< in the order of their uses
  std::vector<int> micro_batch_layers_;  ///< likewise, forward and backward
  Bytes resident_before_;
  int nodes_{};
  int ranks_on_node_{};
  Bytes host_memory_limit_{};
  plan::MemoryPlan memory_;
  std::vector<state::Subgroup> subgroups_;
  std::unique_ptr<trace::Trace> trace_;                  ///< null unless run.trace
  std::unique_ptr<update::DeviceMemory> device_memory_;  ///< likewise
  Bytes activation_bytes_{};                             ///< all that lies idle between passes
  std::unique_ptr<Offload> offload_;
  int parameter_slots_{};  ///< 0: no layer has to be brought to the device
  std::unique_ptr<parameters::WorkingParameters<T>> copy_;
  std::unique_ptr<model::Transformer<T>> model_;
  std::unique_ptr<SharedUpdate> update_;
  std::unique_ptr<update::HeldGradients> held_;  ///< null: no gradient stays on the device
  std::unique_ptr<update::GradientAccumulator<T>> gradients_;
  std::optional<OverlapChoice> overlap_;
  bool ahead_ = false;  ///< of this step: its update begins under backward
};

}  // namespace offstage::train
