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
  [[nodiscard]] bool is_paced() const noexcept { return rate_ > 0.0; }

  /// Runs `work`, which is worth so many units, and returns when they are due. Work that ends late,
  /// as sleeps do and work of no units does, is made up for by the next work, if that follows soon:
  /// the mean rate of busy times holds. Idle times earn nothing.
  template <class Work>
  void run(double units, Work&& work) {
    if (!is_paced()) {
      work();
      return;
    }
    auto const now = Clock::now();
    auto const due =
        (now - end_ < credit ? now - std::min(late_, credit) : now) +
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(units / rate_));
    work();
    std::this_thread::sleep_until(due);
    end_ = Clock::now();
    late_ = end_ - due;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::duration credit = std::chrono::milliseconds{5};
  double rate_;
  Clock::time_point end_{};  ///< end of the last work
  Clock::duration late_{};   ///< by how much that was late
};

}  // namespace offstage
