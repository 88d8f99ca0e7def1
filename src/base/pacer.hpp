#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace offstage {

/// Makes work take no less time than an emulated rate says. Threads: one at a time.
class Pacer {
 public:
  /// Units per second; 0: no limit.
  explicit Pacer(double rate = 0.0) noexcept : rate_{rate} {}

  /// Runs `work`, which is worth so many units, and returns when they are due. A sleep that ends late is
  /// made up for by the next work, if that follows at once: the mean rate holds.
  template <class Work>
  void run(double units, Work&& work) {
    auto const begin = std::max(due_, Clock::now() - credit);
    work();
    if (rate_ > 0.0) {
      due_ = begin + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(units / rate_));
      std::this_thread::sleep_until(due_);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds credit{5};
  double rate_;
  Clock::time_point due_{};
};

}  // namespace offstage
