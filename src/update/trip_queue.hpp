#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>

#include "plan/trip_order.hpp"

namespace offstage::update {

using plan::Trip;

/// Deals the trips of an update to workers, in the order that plan::TripOrder says.
///
/// Threads: any.
class TripQueue {
 public:
  /// `device_first`: no CPU trip begins before all device trips have ended.
  TripQueue(std::span<Trip const> order, int workers, bool device_first);

  /// A trip, and when it was dealt: later ones were dealt later.
  struct Deal : Trip {
    std::chrono::steady_clock::time_point when;
  };
  /// A trip to make; none when none is left, or one has failed. Blocks for device_first alone.
  [[nodiscard]] std::optional<Deal> take();
  /// This one is dealt before all that are left: the next forward will want what became possible last first,
  /// so that a storage that is behind had better be behind with the others. Nothing if it was dealt.
  void bring_forward(std::int64_t subgroup);
  /// Deals the trips that are left in ascending order of subgroups from now on.
  void lowest_first();
  /// A trip that was taken has ended, well or not.
  void end(Trip const& trip) noexcept;
  /// No more trips are dealt. The first error stays. Returns how many CPU trips are left that nobody took.
  std::int64_t fail(std::exception_ptr error) noexcept;
  /// Blocks until no device trip is left or under way.
  void wait_for_device();
  [[nodiscard]] bool failed() const;
  /// Throws what fail was given first.
  void rethrow() const;
  /// Trips that run on the CPU, as of construction.
  [[nodiscard]] std::int64_t cpu_trips() const noexcept { return cpu_trips_; }

 private:
  std::int64_t cpu_trips_;
  mutable std::mutex mutex_;  ///< guards all below
  std::condition_variable changed_;
  plan::TripOrder order_;
  std::exception_ptr error_;
};

}  // namespace offstage::update
