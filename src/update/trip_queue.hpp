#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <span>

namespace offstage::update {

/// One subgroup's turn in an update.
struct Trip {
  std::int64_t subgroup{};
  bool on_device = false;  ///< resident subgroups are updated there in any case
};

/// Deals the trips of an update to workers, so that CPU and device both have work as long as there is any
/// for them: in the given order, but a side that has less than its part of the workers comes first. (In
/// strict order, all workers may hold trips that wait for one of the two, while the other is idle.)
///
/// Threads: any.
class TripQueue {
 public:
  /// `device_first`: no CPU trip begins before all device trips have ended.
  TripQueue(std::span<Trip const> order, int workers, bool device_first);

  /// A trip to make; none when none is left, or one has failed. Blocks for device_first alone.
  [[nodiscard]] std::optional<Trip> take();
  /// This one is dealt before all that are left: the next forward will want what became possible last first,
  /// so that a storage that is behind had better be behind with the others. Nothing if it was dealt.
  void bring_forward(std::int64_t subgroup);
  /// What is left is dealt in ascending order of subgroups from now on.
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
  struct Turn {
    Trip trip;
    std::int64_t place;  ///< in the order; lower comes first
  };
  struct Side {
    std::deque<Turn> turns;
    int under_way = 0;
  };
  [[nodiscard]] bool device_done() const { return device_.turns.empty() && device_.under_way == 0; }
  /// Which side a worker should serve, of two that both have turns.
  [[nodiscard]] Side& choose();
  [[nodiscard]] static Trip pop(Side& side);

  int least_;  ///< trips under way that each side should have, if it has trips
  bool device_first_;
  std::int64_t cpu_trips_ = 0;
  std::int64_t first_place_ = 0;  ///< of all so far
  mutable std::mutex mutex_;      ///< guards all below
  std::condition_variable changed_;
  Side cpu_, device_;
  std::exception_ptr error_;
};

}  // namespace offstage::update
