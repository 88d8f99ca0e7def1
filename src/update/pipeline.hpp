#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/units.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "parameters/target.hpp"
#include "plan/share.hpp"
#include "platform/trace/trace.hpp"
#include "state/readiness.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"
#include "update/device_lane.hpp"
#include "update/gradients/lease.hpp"
#include "update/trip_queue.hpp"

namespace offstage::update {

struct UpdateStats {
  Seconds total{};  ///< wall time of run(), or of start() to finish()'s last trip
  /// Part of it inside the CPU's optimizer kernel, as long as that is emulated to take.
  Seconds compute{};
  std::int64_t cpu_elements{}, device_elements{};
  std::int64_t tried{};    ///< subgroups that were updated before the norm was known
  DeviceLaneStats device;  ///< figures of this update
};

/// Gives a subgroup's gradient to the thread that updates it.
using GradientSource = std::function<GradientLease(state::Subgroup const&)>;

struct PipelineSettings {
  StateLayout layout = adamw_layout();
  int workers = 2;       ///< trips that go on at a time; with four, CPU and device have two each
  DeviceLane* device{};  ///< null: every update runs on the CPU
  /// Given `device`: the tiers' resident extents; null: none are resident.
  std::function<std::span<std::byte>(std::int64_t subgroup)> resident{};
  plan::Transfers transfers = plan::Transfers::overlap;
  double host_update_rate = 0.0;  ///< emulated (device.hpp)
  state::Readiness* readiness{};  ///< told what is ready; null: nobody
  trace::Trace* trace{};
};

class Trips;
enum class Begin;

/// Updates every subgroup of a shard once: lease, step, commit. `workers` threads each run that trip
/// as one blocking function, so that fetch, update and flush of different subgroups overlap, on all
/// storage paths, on the CPU and on the device. The CPU's steps run on the calling thread, whose
/// OpenMP team the model uses too; under backward they run on a thread of the update's own. A 16-bit
/// gradient is converted inside the kernel.
///
/// Source:  MLP section 3.4, Algorithm 1 (fetch, update, flush); DOS section 4.3, Algorithm 1.
/// Order:   subgroups are fetched in `order`, each its gradient first, but so that CPU and device both
///          have work (trip_queue.hpp). Transfers::blocking: resident subgroups first, then the
///          device's, then the CPU's. Under backward see start_ahead and confirm. The bits depend
///          neither on workers nor on order, places or chunks.
/// Waiting: a worker holds at most one lease of a gradient, one of the state (none of a resident
///          subgroup) and one of parameters (if their target has one). It takes them in this order;
///          under backward the state comes first. One buffer of each is enough for progress. Workers
///          beyond the buffers of the state read gradients ahead.
/// Trace:   rows "slot N" (each trip's fetch, update, which includes the wait for the kernel, and flush)
///          and "update" (the kernel); the device's are in device_lane.hpp.
/// Errors:  the first error of any worker, after all of them have ended.
class UpdatePipeline {
 public:
  UpdatePipeline(std::vector<state::Subgroup> const& subgroups, tiers::Tiers& tiers,
                 PipelineSettings settings);
  /// Leaves out the trips that have not begun, and waits for the others; their error is lost.
  ~UpdatePipeline();
  UpdatePipeline(UpdatePipeline const&) = delete;
  UpdatePipeline& operator=(UpdatePipeline const&) = delete;

  /// `order`: every index of the subgroups once. `step.weight_decay` applies to decayed elements
  /// alone. A pass of the tiers begins with it. Returns when every commit has returned.
  /// Errors: PreconditionError if a gradient has not the elements; the subgroup's state stays as it is.
  UpdateStats run(kernels::OptimizerStep const& step, std::span<Trip const> order,
                  GradientSource const& gradient, parameters::Targets const& targets);
  /// The same, but returns as soon as the CPU has no more to compute. Transfers and device updates go
  /// on under the next forward, which the readiness holds up where it must. Memory that was lent to
  /// the device lane is free then; if the lane has no other memory, the device is done too. finish()
  /// throws the errors of trips.
  void start(kernels::OptimizerStep const& step, std::span<Trip const> order,
             GradientSource gradient, parameters::Targets targets);
  /// Begins an update under backward (Fuyou section 4.3), before the gradients are there and the norm
  /// is known. Subgroups whose tiers have a spare version (Tiers::fetch_on_trial) are updated by
  /// `presumed` as their gradients are completed, the others once that step is confirmed. State is
  /// fetched ahead in `order`, which should be the order in which gradients come; of the complete ones
  /// the last comes first. Returns at once; a thread of its own computes. `most_squares`: see
  /// StepGate. The update that start() began has ended before. Lent device memory is not used.
  /// Errors: PreconditionError: the lane has slots in lent memory alone.
  void start_ahead(kernels::OptimizerStep const& presumed, double most_squares,
                   std::span<Trip const> order, GradientSource gradient,
                   parameters::Targets targets);
  /// Tells such an update that the gradient source can give this subgroup's gradient, and that nobody
  /// needs its old parameters. `squares`: sum over its elements if known, else 0. Threads: any.
  void complete(std::int64_t subgroup, double squares);
  /// Confirms the presumed step. Updated subgroups stay so. The others go on under the next forward, in
  /// the order in which it reads parameters; finish() waits for them. Every subgroup is complete.
  void confirm();
  /// Takes the update back: its step is another, or none. When this returns everything is as before it
  /// began, but the parameters of `reverted` subgroups are not ready. Errors: those of trips.
  struct TakenBack {
    UpdateStats stats;
    std::vector<tiers::Key> reverted;
  };
  [[nodiscard]] TakenBack take_back();
  /// Begins an update whose gradients are all there and whose step is known, as start() does, but all
  /// of it goes on under the next forward, in the order in which that reads parameters. A thread of its
  /// own computes, and this returns at once. It follows take_back; lent device memory is not used.
  void start_under_forward(kernels::OptimizerStep const& step, std::span<Trip const> order,
                           GradientSource gradient, parameters::Targets targets);
  /// Cancels waiting trips after the run has failed, and waits for the others. Only late calls of
  /// complete and the destructor follow.
  void abandon() noexcept;
  [[nodiscard]] bool is_ahead() const noexcept { return ahead_; }

  /// Waits until the update that start began has ended. Call it before gradients or state are touched
  /// again. Without a start it returns empty figures. Errors: as run.
  UpdateStats finish();

 private:
  std::vector<state::Subgroup> const& subgroups_;
  tiers::Tiers& tiers_;
  PipelineSettings settings_;
  void begin(std::span<Trip const> order);
  /// The trips of an update whose step is known.
  void start_trips(Begin when, kernels::OptimizerStep const& step, std::span<Trip const> order,
                   GradientSource gradient, parameters::Targets targets);
  std::unique_ptr<Trips> under_way_;  ///< trips that start began
  bool ahead_ = false;                ///< it waits for confirm or take_back
  bool was_ahead_ = false;            ///< it was confirmed
};

}  // namespace offstage::update
