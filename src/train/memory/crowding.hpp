#pragma once

#include <optional>
#include <string>

#include "base/stopwatch.hpp"
#include "base/units.hpp"

namespace offstage::train {

/// Notices, once, that this process does not get the cores that it asks for.
class Crowding {
 public:
  /// After a step. A sentence for the user if the main thread, which takes part in all that cores
  /// compute, has waited for a core for more than a fifth of some seconds; empty otherwise, and
  /// from then on.
  [[nodiscard]] std::string look();

  /// The sentence for such a time, or none: pure.
  [[nodiscard]] static std::string judge(Seconds waited, Seconds elapsed);

 private:
  bool said_ = false;
  std::optional<Seconds> waited_;  ///< at the beginning of the time that is looked at
  Stopwatch watch_;
};

}  // namespace offstage::train
