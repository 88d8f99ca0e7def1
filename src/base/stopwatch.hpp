#pragma once

#include <chrono>

#include "base/units.hpp"

namespace offstage {

/// Wall time since construction or restart, on the monotonic clock.
class Stopwatch {
 public:
  [[nodiscard]] Seconds elapsed() const { return std::chrono::steady_clock::now() - start_; }
  /// The time so far; the next measurement starts now.
  Seconds lap() {
    auto const now = std::chrono::steady_clock::now();
    Seconds const taken = now - start_;
    start_ = now;
    return taken;
  }

 private:
  std::chrono::steady_clock::time_point start_{std::chrono::steady_clock::now()};
};

}  // namespace offstage
