#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/units.hpp"

namespace offstage::checkpoint {

/// Spreads the work of a save over time: each piece is worth a while, and whoever did it sooner
/// pauses.
///
/// Order:   a piece that took longer than it is worth is made up for by the next ones, up to
///          `credit`: so the mean rate holds where storage is busy at times.
/// Threads: one.
class Allowance {
 public:
  using Clock = std::chrono::steady_clock;

  /// A piece that is done was worth so long.
  void add(Seconds worth) noexcept {
    due_ = std::max(due_, Clock::now() - credit) +
           std::chrono::duration_cast<Clock::duration>(std::min(worth, longest));
  }

  /// Returns when all that is done is due, or soon after `hurries()` is true.
  template <class Hurries>
  void pause(Hurries&& hurries) {
    for (auto now = Clock::now(); now < due_ && !hurries();) {
      std::this_thread::sleep_until(std::min(due_, now + look));
      auto const woken = Clock::now();
      paused_ += woken - now;
      now = woken;
    }
  }

  /// True until a piece that is worth so long, the next one, should be done.
  [[nodiscard]] bool has_time(Seconds worth) const noexcept {
    return Clock::now() <
           due_ + std::chrono::duration_cast<Clock::duration>(std::min(worth, longest));
  }
  /// The time in pause() so far.
  [[nodiscard]] Seconds paused() const noexcept { return paused_; }

 private:
  static constexpr Clock::duration credit = std::chrono::seconds{1};
  static constexpr Clock::duration look =
      std::chrono::milliseconds{20};      ///< how often it asks who hurries
  static constexpr Seconds longest{1e7};  ///< of one piece: sums of such do not overflow
  Clock::time_point due_ = Clock::now();
  Clock::duration paused_{};
};

}  // namespace offstage::checkpoint
