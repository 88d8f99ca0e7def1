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
#include "update/gradients/final_gradients.hpp"
#include "update/gradients/held_gradients.hpp"
#include "update/gradients/lease.hpp"
#include "update/trip_queue.hpp"

namespace offstage::update {

/// Figures of an update; all are zero if none has ended.
struct UpdateStats {
  Seconds total{};  ///< wall time from its begin to the end of its last trip
  /// Part of it inside the CPU's optimizer kernel, as long as that is emulated to take.
  Seconds compute{};
  std::int64_t cpu_elements{}, device_elements{};
  std::int64_t tried{};    ///< subgroups that were updated before the norm was known
  DeviceLaneStats device;  ///< figures of this update
};

/// Gives a subgroup's gradient to the thread that updates it. Threads: any.
using GradientSource = std::function<GradientLease(state::Subgroup const&)>;

/// Parts that an update reads, writes and computes with. All of them outlive the update.
struct UpdateParts {
  std::vector<state::Subgroup> const& subgroups;
  tiers::Tiers& state;  ///< key = Subgroup::index
  GradientSource gradient;
  parameters::Targets target;
  DeviceLane* device{};  ///< null: every update runs on the CPU
  /// Given `device`: the state of resident subgroups, in device memory; null: none are resident.
  std::function<std::span<std::byte>(std::int64_t subgroup)> resident{};
  HeldGradients* held{};  ///< null: all gradients go to the host
};

struct UpdateSettings {
  StateLayout layout = adamw_layout();
  int workers = 2;  ///< trips that go on at a time; with four, CPU and device have two each
  plan::Transfers transfers = plan::Transfers::overlap;
  /// Gradients of subgroups that the CPU updates are summed on the device too, where there is room.
  bool sums_on_device = false;
  double host_update_rate = 0.0;  ///< emulated (device.hpp)
  trace::Trace* trace{};
};

class Trips;
enum class Begin;

/// A rank's updates: every subgroup of its shard once a step, by lease, step, commit. `workers`
/// threads each run that trip as one blocking function, so that fetch, update and flush of
/// different subgroups overlap, on all storage paths, on the CPU and on the device. A 16-bit
/// gradient is converted inside the kernel.
///
/// A step:  plan, before its gradients come; then either run once the norm is known; or begin_early
///          before the last round of gradients, and confirm, or revert and run (or not, if the step
///          is skipped). What then goes on ends under the next forward, and finish waits for it.
/// Source:  MLP section 3.4, Algorithm 1 (fetch, update, flush); DOS section 4.3, Algorithm 1.
/// Order:   subgroups are fetched as planned, each its gradient first, but so that CPU and device
///          both have work (trip_queue.hpp). Transfers::blocking: resident subgroups first, then
///          the device's, then the CPU's. Under backward see begin_early and confirm. The bits
///          depend neither on workers nor on order, places or chunks.
/// Waiting: a worker holds at most one lease of a gradient, one of the state (none of a resident
///          subgroup) and one of parameters (if their target has one). It takes them in this order;
///          under backward the state comes first. One buffer of each is enough for progress.
///          Workers beyond the buffers of the state read gradients ahead.
/// Threads: one calls the members but complete. The CPU's steps run on that thread in run, whose
///          OpenMP team the model uses too; under backward and forward they run on a thread of the
///          update's own.
/// Trace:   rows "worker N" (each trip's fetch, update, which includes the wait for the kernel, and
///          flush) and "update" (the kernel); the device's are in device_lane.hpp.
/// Errors:  the first error of any worker, after all of them have ended.
class Update final : public FinalGradients {
 public:
  /// Errors: PreconditionError: no workers; residents without a device.
  Update(UpdateParts parts, UpdateSettings const& settings);
  /// Leaves out the trips that have not begun, and waits for the others; their error is lost.
  ~Update() override;
  Update(Update const&) = delete;
  Update& operator=(Update const&) = delete;

  /// Plans the next update, when the one before has ended and no gradient has come: `trips` are
  /// every subgroup once, each with its place. Gradients that the device will need are held there
  /// from now on.
  /// Errors: PreconditionError.
  void plan(std::vector<Trip> trips);
  /// Begins the planned update under backward (Fuyou section 4.3), before the gradients are there
  /// and the norm is known. Subgroups whose tiers have a spare version (Tiers::has_spare) are
  /// updated by `presumed` as their gradients are completed; the others come after those, once that
  /// step is confirmed. State is fetched ahead in the planned order, which should be the order in
  /// which gradients come; of the complete ones the last comes first. Returns at once.
  /// `most_squares`: see StepGate. Memory that was lent to the device lane is not used.
  /// Errors: PreconditionError: the lane has buffers in lent memory alone.
  void begin_early(kernels::OptimizerStep const& presumed, double most_squares);
  /// True from begin_early to confirm or revert.
  [[nodiscard]] bool is_early() const noexcept { return early_; }
  /// Lets an early update go on with this gradient; no effect on others, which begin when all are
  /// there.
  void complete(tiers::Key subgroup, double squares) override;
  /// Confirms the presumed step of an early update. Updated subgroups stay so. The others go on
  /// under the next forward, in the order in which it reads parameters. Every gradient is complete.
  /// Returns the update's figures if it has ended (Transfers::blocking).
  UpdateStats confirm();
  struct Reverted {
    UpdateStats stats;
    /// Subgroups whose new parameters have reached the working copy: they are not ready.
    std::vector<tiers::Key> subgroups;
  };
  /// Takes an early update back: its step is another, or none. When this returns everything else is
  /// as before it began. Errors: those of trips.
  Reverted revert();
  /// Makes the planned update, whose gradients are all there, by this step; its weight decay
  /// applies to decayed elements alone. A pass of the tiers begins with it. Returns when the CPU
  /// has no more to compute and memory that was lent to the device lane is free; if the lane has no
  /// other memory, when the device is done. After revert all of it goes on under the next forward,
  /// in the order in which that reads parameters, and this returns at once. Without a device, and
  /// with Transfers::blocking, it returns when every commit has returned, with the update's
  /// figures.
  /// Errors: PreconditionError, also if a gradient has not the elements; the subgroup's state stays
  ///         as it is. What returns early leaves the errors of trips to finish.
  UpdateStats run(kernels::OptimizerStep const& step);
  /// Waits until the update has ended, and returns its figures if it went on until now. Call it
  /// before gradients or state are touched again. Errors: those of trips.
  UpdateStats finish();
  /// Cancels waiting trips after the run has failed, and waits for the others. Only late calls of
  /// complete and the destructor follow.
  void abandon() noexcept;

  /// Says which parts of the working copy are this step's.
  [[nodiscard]] state::Readiness& readiness() noexcept { return readiness_; }

 private:
  /// Begins a pass of the tiers for the planned update.
  void begin_pass();
  /// Begins the trips of an update whose step is known.
  void start_trips(Begin when, kernels::OptimizerStep const& step, std::span<Trip const> order);
  /// Has gradients held on the device as the planned trips need them.
  void hold_gradients();

  UpdateParts parts_;
  UpdateSettings settings_;
  state::Readiness readiness_;
  std::vector<Trip> trips_;    ///< trips of the next update; none: it is not planned
  bool early_ = false;         ///< the update waits for confirm or revert
  bool was_early_ = false;     ///< the update was confirmed
  bool was_reverted_ = false;  ///< the planned update was taken back
  std::unique_ptr<Trips> under_way_;
};

}  // namespace offstage::update
