#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/stopwatch.hpp"
#include "checkpoint/run_state.hpp"
#include "checkpoint/split_parameters.hpp"
#include "config/run_config.hpp"
#include "data/dataset.hpp"
#include "device/device.hpp"
#include "plan/memory.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/trace/trace.hpp"
#include "state/initialize.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"
#include "train/forecast/run_forecast.hpp"
#include "train/memory/device_demand.hpp"
#include "train/memory/memory_demand.hpp"
#include "train/offload/offload.hpp"
#include "train/step/calling_source.hpp"
#include "train/step/source_losses.hpp"
#include "train/step/step_parts.hpp"
#include "train/step/step_result.hpp"
#include "train/step/step_update.hpp"
#include "update/gradients/block_rounds.hpp"

namespace offstage::train {

/// One rank's model, state and gradients, and the straight line of one step through them. T is the
/// type of working copy, activations and gradients.
///
/// Collective: construction and every member.
/// Memory:     everything is allocated at construction, within the memory plan.
/// Errors:     construction throws mpi::AgreedError for what a user can mend.
template <class T>
class StepRunner {
 public:
  /// See StepParts.
  StepRunner(config::RunConfig const& config, mpi::Communicator const& comm,
             std::unique_ptr<device::Device> device, std::unique_ptr<state::RankLink> link,
             OnPlan const& on_plan, cudnn::Attention* attention = nullptr);

  /// Fills the state with zero moments and the weights of `first_weights`, or the seed's if that is
  /// null.
  void initialize(state::ParameterReader* first_weights);
  [[nodiscard]] checkpoint::OnSubgroup fill_working_copy();
  /// The split parameters, if the tiers have the lower halves. The runner must outlive them.
  [[nodiscard]] std::optional<checkpoint::SplitParameters> split_parameters();
  /// Opens the trace's file, if there is to be one. Nothing can refuse the run any more. If the
  /// rates are given, also writes foreseen-RANK.json beside it, the same for simulated steps
  /// (plan::simulate_events). Returns foresee(). Not collective. Errors: IoError of
  /// trace::Trace::open.
  [[nodiscard]] std::optional<RunForecast> open_trace();

  /// Makes one step over the global batch whose first sequence is sample `first_sample`.
  /// `optimizer_step` is the optimizer's t, counted from 1. `loss_scale`, a power of two, changes
  /// no bits unless numbers leave the range of T.
  StepResult step(data::Dataset const& data, std::int64_t first_sample, double learning_rate,
                  std::int64_t optimizer_step, double loss_scale);
  /// Sets a function that is called once in every step, on all ranks at the same place: before the
  /// update changes the state, or would. It returns true if a background checkpoint ended in this
  /// step, or copies of level 1 were made; one that is paced over many steps counts in its last.
  void set_before_update(std::function<bool()> call) { before_update_ = std::move(call); }
  /// Sets a function that the thread that calls MPI calls before each use of a layer. It does not
  /// wait.
  void set_before_layer(std::function<void()> call) { before_layer_ = std::move(call); }
  /// Predicts this rank's steps; see foresee_run. Before the first step it uses given rates only.
  /// Returns nothing, with a warning, if that fails. Not collective.
  [[nodiscard]] std::optional<RunForecast> foresee() const;
  /// Waits for the part of the last update that goes on under the next forward. Call it before the
  /// state is read or saved. Errors: those of the update.
  void finish_update() {
    parts_.update->disturbed();
    parts_.update->finish();
  }
  /// Mean loss over the targets of the first `windows` windows, as mean_loss(). Returns nothing if
  /// still_wanted() ended it: see LossCalls.
  std::optional<MeanLosses> validate(data::Dataset const& data, std::int64_t windows,
                                     std::function<bool()> still_wanted);

  /// Null unless run.trace.
  [[nodiscard]] trace::Trace* trace() const noexcept { return parts_.trace.get(); }
  [[nodiscard]] state::ShardMap const& map() const noexcept { return parts_.map; }
  [[nodiscard]] std::vector<state::Subgroup> const& subgroups() const noexcept {
    return parts_.subgroups;
  }
  [[nodiscard]] tiers::Tiers& tiers() noexcept { return parts_.offload->state(); }
  /// Null: everything stays in host memory.
  [[nodiscard]] std::shared_ptr<tiers::PathSet> paths() const { return parts_.offload->paths(); }
  [[nodiscard]] std::vector<PathFacts> path_facts() const { return parts_.offload->facts(); }
  [[nodiscard]] device::Device const& device() const noexcept { return *parts_.device; }
  [[nodiscard]] plan::MemoryPlan const& memory_plan() const noexcept { return parts_.memory; }
  /// Rates of this rank's updates (StepUpdate::rates).
  [[nodiscard]] plan::UpdateRates const& rates() const noexcept { return parts_.update->rates(); }
  /// Device memory that this rank takes, as planned.
  [[nodiscard]] DeviceDemand device_plan() const { return parts_.device_plan(); }
  /// Returns the table of this rank's data and their places, beside the limits.
  [[nodiscard]] std::vector<std::string> memory_table() const {
    return parts_.run_memory->table(parts_.memory, parts_.offload->spares() - parts_.memory.spares);
  }
  [[nodiscard]] Room const& room() const noexcept { return parts_.run_memory->room(); }
  [[nodiscard]] int nodes() const noexcept { return parts_.nodes; }
  /// Memory that tiers.host-memory bounds, as measured: the node's sum of peak resident memory,
  /// less what was resident before construction and the emulated device's arena. Collective.
  [[nodiscard]] Bytes host_memory_peak() const;
  /// The usual part of that on this node which is not in the plan.
  [[nodiscard]] Bytes library_bytes() const noexcept {
    return room().ranks_per_node * usual_library_bytes;
  }
  /// Memory that device.memory bounds: the largest use of any rank at a time. Collective.
  [[nodiscard]] Bytes device_memory_peak() const { return comm_.maximum(parts_.device->peak()); }
  /// Layers that are brought to the device at a time; 0: none has to be brought.
  [[nodiscard]] int layer_slots() const noexcept { return parts_.layer_slots; }

 private:
  [[nodiscard]] std::optional<RunForecast> foresee(std::vector<plan::SimulatedEvent>* events) const;
  /// Makes the call of set_before_update, only the first time in a step.
  void call_before_update(StepResult& result);
  /// Traffic of activations since the start.
  [[nodiscard]] state::ActivationTraffic moved_activations() const {
    return parts_.activations ? parts_.activations->traffic() : state::ActivationTraffic{};
  }
  /// Tells the trace that activations were in use from then until now.
  void tell_of_activations(trace::Clock::time_point from);
  /// Numbers of a step, beside its result.
  struct Now {
    double learning_rate{};
    std::int64_t optimizer_step{};
    double loss_scale{};
    std::int64_t first_sample{};
    Stopwatch step{};  ///< time since the step's begin
  };
  /// Runs forward and backward of this rank's micro-batches.
  void run_micro_batches(data::Dataset const& data, Now const& now, StepResult& result);
  /// The same in a vertical schedule: micro-batches pass the layers together.
  void run_layers(data::Dataset const& data, Now const& now, StepResult& result);
  /// Micro-batch `number` of the step.
  [[nodiscard]] data::TokenBatch micro_batch(data::Dataset const& data, Now const& now,
                                             std::int64_t number) const;
  /// Call it once every forward is done. Agrees on the loss, and begins the update if it is to
  /// begin under backward.
  void begin_early(std::span<double const> losses, Now const& now, StepResult& result);
  /// Computes the step's loss, once every forward is done. `losses` are this rank's.
  void agree_on_loss(std::span<double const> losses, StepResult& result);
  [[nodiscard]] UpdateNumbers update_numbers(Now const& now, StepResult const& result) const;

  config::RunConfig const& config_;
  mpi::Communicator const& comm_;
  std::int64_t micro_batches_;           ///< number per step, all ranks
  update::BlockRounds dealt_;            ///< the rank of each micro-batch
  std::vector<int> forward_layers_;      ///< layers in the order of their uses
  std::vector<int> micro_batch_layers_;  ///< the same for forward and backward
  StepParts<T> parts_;
  Bytes activation_bytes_{};  ///< with a trace: activations' memory, which is idle between passes
  std::function<bool()> before_update_;
  std::function<void()> before_layer_;
  CallingSource<T> source_{before_layer_, *parts_.copy};  ///< the copy that the model uses
  ReachedRates reached_;  ///< without rates, which other objects know
  bool told_ = false;     ///< before_update_ was called in this step
  /// A look at the counters of the tiers.
  struct Look {
    tiers::Traffic traffic;
    Stopwatch since{};  ///< time since then
  };
  /// The look at the end of the last step. Traffic between steps, such as flushes of an update that
  /// go on under a validation, counts for the next step.
  std::optional<Look> last_look_;
};

}  // namespace offstage::train
