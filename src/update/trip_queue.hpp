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
  /// The arguments are those of TripOrder.
  TripQueue(std::span<Trip const> order, int workers, bool device_first, std::int64_t reach);

  /// A trip, and when it was dealt: later ones were dealt later.
  struct Deal : Trip {
    std::chrono::steady_clock::time_point when;
  };
  /// Returns a trip to make, or nothing when none is left or one has failed. Blocks only for
  /// device_first.
  [[nodiscard]] std::optional<Deal> take();
  /// Deals this trip before all that are left; no effect if it was dealt. The next forward wants
  /// the subgroup that became possible last first, so a storage path that is behind should be
  /// behind with the others.
  void bring_forward(std::int64_t subgroup);
  /// Deals the trips that are left in ascending order of subgroups from now on.
  void lowest_first();
  /// Ends a trip that was taken, whether it failed or not.
  void end(Trip const& trip) noexcept;
  /// Deals no more trips. The first error stays. Returns how many CPU trips are left that nobody
  /// took.
  std::int64_t fail(std::exception_ptr error) noexcept;
  /// Blocks until no device trip is left or under way.
  void wait_for_device();
  [[nodiscard]] bool failed() const;
  /// Throws what fail was given first.
  void rethrow() const;
  /// Trips that run on the CPU, as of construction.
  [[nodiscard]] std::int64_t cpu_trips() const noexcept { return order_.cpu_trips(); }

 private:
  mutable std::mutex mutex_;  ///< guards all below
  std::condition_variable changed_;
  plan::TripOrder order_;
  std::exception_ptr error_;
};

}  // namespace offstage::update
