#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/units.hpp"

namespace offstage::checkpoint {

/// Spreads the work of a save over time: each piece is worth some seconds, and the thread that did
/// it sooner pauses.
///
/// Order:   the next pieces make up for one that took longer than it is worth, up to `credit`. So
///          the mean rate holds where storage is busy at times.
/// Threads: one.
class Allowance {
 public:
  using Clock = std::chrono::steady_clock;

  /// Counts a piece that is done and was worth so many seconds.
  void add(Seconds worth) noexcept {
    due_ = std::max(due_, Clock::now() - credit) +
           std::chrono::duration_cast<Clock::duration>(std::min(worth, longest));
  }

  /// Returns when every piece that is done is due, or soon after `hurries()` is true.
  template <class Hurries>
  void pause(Hurries&& hurries) {
    for (auto now = Clock::now(); now < due_ && !hurries();) {
      std::this_thread::sleep_until(std::min(due_, now + look));
      auto const woken = Clock::now();
      paused_ += woken - now;
      now = woken;
    }
  }

  /// Returns true until the next piece, which is worth so many seconds, should be done.
  [[nodiscard]] bool has_time(Seconds worth) const noexcept {
    return Clock::now() <
           due_ + std::chrono::duration_cast<Clock::duration>(std::min(worth, longest));
  }
  /// Returns the time spent in pause() so far.
  [[nodiscard]] Seconds paused() const noexcept { return paused_; }

 private:
  static constexpr Clock::duration credit = std::chrono::seconds{1};
  static constexpr Clock::duration look =
      std::chrono::milliseconds{20};  ///< how often pause() asks `hurries()`
  /// A piece is worth no more, so that sums do not overflow.
  static constexpr Seconds longest{1e7};
  Clock::time_point due_ = Clock::now();
  Clock::duration paused_{};
};

}  // namespace offstage::checkpoint
