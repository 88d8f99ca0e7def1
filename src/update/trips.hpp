#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/pacer.hpp"
#include "base/stopwatch.hpp"
#include "base/thread.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "platform/trace/trace.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"
#include "update/compute_lane.hpp"
#include "update/step_gate.hpp"
#include "update/trip_queue.hpp"
#include "update/update.hpp"

namespace offstage::update {

/// When an update begins, and who computes.
enum class Begin {
  after_backward,  ///< all gradients are there; the owner computes in serve
  under_backward   ///< they may come while it goes on; a thread of its own computes
};

/// The trips of one update, and the threads that make them, from construction on.
///
/// Threads: one owns it; `workers` make the trips.
class Trips {
 public:
  /// Objects given by reference, and those that the parts name, must outlive this. `readiness` is
  /// told of parameters that are in place. The gate says when and by what step a subgroup is
  /// updated.
  Trips(UpdateParts const& parts, UpdateSettings const& settings, state::Readiness& readiness,
        Begin begin, std::unique_ptr<StepGate> gate, std::span<Trip const> order);
  /// Cancels what waits at the gate, and waits for all trips.
  ~Trips();
  Trips(Trips const&) = delete;
  Trips& operator=(Trips const&) = delete;

  /// After backward: computes until the CPU has no more to compute and memory that was lent to the
  /// device lane is free.
  void serve();
  /// Cancels what waits at the gate, and waits for all trips.
  void abandon() noexcept;
  /// Under backward: see Update::complete.
  void complete(std::int64_t index, double squares);
  /// Under backward: the presumed step is right, and the next forward will want the lowest
  ///                 subgroups first.
  void confirm();
  /// Under backward: there is no presumed step. Trips that wait for the norm are left out.
  void cancel() noexcept { gate_->cancel(); }
  /// Waits until all trips have ended or were cancelled. Errors: the first of any worker.
  UpdateStats finish();

 private:
  /// One worker: trips until none is left or one has failed.
  void work(int worker) noexcept;
  void fail(std::exception_ptr error) noexcept;
  void make_on_cpu(state::Subgroup const& subgroup, std::string const& row,
                   trace::Clock::time_point dealt);
  void make_on_device(state::Subgroup const& subgroup, std::string const& row,
                      trace::Clock::time_point dealt);
  /// Leases that a trip reads and writes; without the state if that lies on the device.
  struct Leases {
    std::optional<GradientLease> gradient;
    std::optional<tiers::Lease> state;
    std::optional<parameters::Target> target;
    kernels::OptimizerStep step;
  };
  /// None: the gate was cancelled.
  [[nodiscard]] std::optional<Leases> fetch(state::Subgroup const& subgroup, bool resident,
                                            std::string const& row, trace::Clock::time_point dealt);
  /// Under backward the state comes first, while the gradient is still being made.
  [[nodiscard]] std::optional<Leases> fetch_ahead(state::Subgroup const& subgroup, bool resident);
  /// The compute lane's thread, under backward.
  void serve_alone() noexcept;
  /// On the serving thread. The event is when the new parameters are in place; null: they are.
  [[nodiscard]] std::shared_ptr<device::Event> compute(state::Subgroup const& subgroup,
                                                       Leases& leases);
  void compute_part(StepPart const& part, kernels::OptimizerStep const& step);
  /// Ends a trip: its new parameters are committed first, then its state.
  void end(state::Subgroup const& subgroup, Leases leases, std::string const& row);

  /// The subgroups that can be updated once the norm is known, and not before.
  [[nodiscard]] std::vector<bool> waiting_for_norm() const;
  [[nodiscard]] std::vector<Trip> placed(std::span<Trip const> order) const;
  [[nodiscard]] bool is_resident(std::int64_t index) const {
    return parts_.resident && subgroup(index).resident;
  }
  [[nodiscard]] state::Subgroup const& subgroup(std::int64_t index) const {
    return parts_.subgroups[static_cast<std::size_t>(index)];
  }

  UpdateParts const& parts_;
  UpdateSettings const& settings_;
  state::Readiness& readiness_;
  Begin begin_;
  std::unique_ptr<StepGate> gate_;
  std::vector<bool> waits_for_norm_;  ///< by subgroup
  int team_;                          ///< threads that an update on the CPU uses
  TripQueue queue_;
  ComputeLane lane_;
  Pacer pacer_;                    ///< pacer of the thread that computes alone
  Seconds compute_{};              ///< seconds of that thread in the kernel
  std::int64_t cpu_elements_ = 0;  ///< elements that it has updated
  DeviceLaneStats before_;
  Stopwatch watch_;
  std::mutex mutex_;  ///< guards what follows, as long as workers live
  Seconds total_{};   ///< until the last worker ended
  std::int64_t device_elements_ = 0;
  std::int64_t tried_ = 0;
  std::optional<NamedThread> server_;  ///< last, both: they use all of the above
  std::vector<NamedThread> threads_;
};

}  // namespace offstage::update
