#pragma once

#include <optional>
#include <string>

#include "base/stopwatch.hpp"
#include "base/units.hpp"

namespace offstage::train {

/// Notices, once, that this process does not get the cores for which it asks.
class Crowding {
 public:
  /// Call it after a step. Returns a sentence for the user if the main thread, which takes part in
  /// all work of the cores, has waited for a core for more than a fifth of some seconds. Empty
  /// otherwise, and after the first sentence.
  [[nodiscard]] std::string look();

  /// The sentence for such a wait, or none. Pure.
  [[nodiscard]] static std::string judge(Seconds waited, Seconds elapsed);

 private:
  bool said_ = false;
  std::optional<Seconds> waited_;  ///< wait at the begin of the time that is looked at
  Stopwatch watch_;
};

}  // namespace offstage::train
