#pragma once

#include "base/units.hpp"
#include "plan/share.hpp"

namespace offstage::plan {

/// Rates per second of one rank's share of each resource, while all ranks of the node do the same.
/// 0: it takes no time.
struct Machine {
  double compute{};  ///< floating-point operations of the device's products
  /// Updates, link and paths. `paths`: all of them, with the rates divided by the ranks that share
  /// them.
  UpdateRates rates{};
  double host_sum{};   ///< bytes that the cores read and write where they add gradients
  double rank_link{};  ///< bytes that come to this rank from the others
  /// Bytes that a hold of a path transfers at most (tiers::path_hold_bytes).
  double path_hold = 64.0 * static_cast<double>(MiB);
};

}  // namespace offstage::plan
