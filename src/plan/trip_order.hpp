#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace offstage::plan {

/// One subgroup's turn in an update.
struct Trip {
  std::int64_t subgroup{};
  bool on_device = false;  ///< the device updates it, as it does resident subgroups in any case
};

/// The order of an update's trips, in which CPU and device both have work as long as there is any
/// for them. It is the given order, but a side with less than its part of the workers comes first.
/// (In strict order all workers may have trips that wait for one side, while the other is idle.)
/// While gradients come in that order, such a trip may be far ahead of them: a worker would wait
/// there and be missed here. Waits for nothing.
/// Threads: one at a time.
class TripOrder {
 public:
  static constexpr std::int64_t any_reach = std::numeric_limits<std::int64_t>::max();
  /// `device_first`: no CPU trip begins before all device trips have ended. `reach`: places that a
  /// trip which comes first may be ahead of those that were brought forward.
  TripOrder(std::span<Trip const> order, int workers, bool device_first, std::int64_t reach);

  [[nodiscard]] bool empty() const { return cpu_.turns.empty() && device_.turns.empty(); }
  /// Returns whether the trips that are left have to wait until device trips under way have ended.
  [[nodiscard]] bool must_wait() const;
  [[nodiscard]] bool device_done() const { return device_.turns.empty() && device_.under_way == 0; }
  /// Returns the next trip, or nothing if none is left. Not to be called while must_wait().
  [[nodiscard]] std::optional<Trip> take();
  /// Deals this trip, whose gradient has come, before all that are left, unless it was dealt.
  void bring_forward(std::int64_t subgroup);
  /// From now on deals the trips that are left in ascending order of subgroups, with any reach: all
  /// gradients are there.
  void lowest_first();
  /// Ends a trip that was taken.
  void end(Trip const& trip) noexcept;
  /// Drops the trips that are left. Returns how many of them were CPU trips.
  std::int64_t clear() noexcept;
  /// Number of trips that ran on the CPU at construction.
  [[nodiscard]] std::int64_t cpu_trips() const noexcept { return cpu_trips_; }

 private:
  struct Turn {
    Trip trip;
    std::int64_t place;  ///< place in the order; lower comes first
  };
  struct Side {
    std::deque<Turn> turns;
    int under_way = 0;
  };
  /// The side that a worker should serve, if both have turns.
  [[nodiscard]] Side& choose();
  [[nodiscard]] static Trip pop(Side& side);

  int least_;  ///< trips that each side should have under way, if it has any
  bool device_first_;
  std::int64_t reach_;
  std::int64_t cpu_trips_ = 0;
  std::int64_t first_place_ = 0;      ///< lowest place so far
  std::int64_t brought_forward_ = 0;  ///< trips
  Side cpu_, device_;
};

/// Deals the subgroups in this order to trips. After each trip the device has its share of the
/// elements, rounded to whole subgroups. `sizes` has each subgroup's elements.
[[nodiscard]] std::vector<Trip> deal_trips(double share, std::span<std::int64_t const> order,
                                           std::span<std::int64_t const> sizes);

}  // namespace offstage::plan
