#pragma once

#include <optional>
#include <string>

#include "base/stopwatch.hpp"
#include "base/units.hpp"

namespace offstage::train {

/// Notices, once, that this process does not get the cores that its threads ask for.
class Crowding {
 public:
  /// `threads`: run.threads, as taken.
  explicit Crowding(int threads) : threads_{threads} {}

  /// After a step. A sentence for the user if threads waited for more than a fifth of the time since some seconds;
  /// empty otherwise, and from then on.
  [[nodiscard]] std::string look();

  /// The sentence for such a time, or none: pure.
  [[nodiscard]] static std::string judge(Seconds waited, Seconds elapsed, int threads);

 private:
  int threads_;
  bool said_ = false;
  std::optional<Seconds> waited_;  ///< at the beginning of the time that is looked at
  Stopwatch watch_;
};

}  // namespace offstage::train
