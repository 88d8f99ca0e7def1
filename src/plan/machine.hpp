#pragma once

#include "base/units.hpp"
#include "plan/share.hpp"

namespace offstage::plan {

/// Rates per second of one rank's part of each resource, while all ranks of the node do the same.
/// 0: the work takes no time.
struct Machine {
  double compute{};  ///< floating-point operations of the device's products
  /// Rates of updates, link and paths. `paths` has all paths, with rates divided by the ranks that
  /// use them together.
  UpdateRates rates{};
  double host_sum{};   ///< bytes that the cores read and write to add gradients
  double rank_link{};  ///< bytes that come to this rank from the others
  /// Bytes that one turn at a path transfers at most (tiers::path_turn_bytes).
  double path_turn = 64.0 * static_cast<double>(MiB);
};

}  // namespace offstage::plan
