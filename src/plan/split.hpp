#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"

namespace offstage::plan {

/// Rates of a storage path, bytes per second.
struct PathRate {
  double read{};
  double write{};
  bool full_duplex = false;

  [[nodiscard]] bool known() const noexcept { return read > 0.0 && write > 0.0; }
};

/// The key tiers.split.
enum class SplitRule {
  /// All paths finish together: weight 1 / (1 / read + 1 / write), or min(read, write) in full
  /// duplex.
  automatic,
  paper,  ///< MLP equation 1: min(read, write)
  first,  ///< all extents are on the first path; others are used while that one takes none
  fixed   ///< `weights`, one per path
};
struct SplitPolicy {
  SplitRule rule = SplitRule::automatic;
  std::vector<double> weights;
};

/// Reads `auto`, `paper`, `first` or weights `2:1`. Errors: UsageError, without the key's name.
[[nodiscard]] SplitPolicy parse_split(std::string const& text);

/// The part of the extents that each path should hold; the parts sum to 1.
/// Errors: PreconditionError if the rates are not positive (fixed and first need none) or the
///         number of weights is not that of the paths.
[[nodiscard]] std::vector<double> split_weights(SplitPolicy const& policy,
                                                std::span<PathRate const> rates);

/// One of `ranks` ranks that each place equally many extents on the same paths, without messages
/// between them.
struct PathSharer {
  std::int64_t rank = 0;
  std::int64_t ranks = 1;
};

/// Returns whether the weights depend on the paths' rates.
[[nodiscard]] bool needs_rates(SplitPolicy const& policy);

/// Returns whether the rule gives this path any extents.
[[nodiscard]] bool takes_extents(SplitPolicy const& policy, std::size_t path);

/// The path for the next extent, when the paths have `counts` extents of this rank. It is the path
/// with the least (count + 1) / weight, the first of equals. The extents of several ranks together
/// are placed as those of one rank would be. A rank has no more extents on a path than its turn
/// among the others gives it, so that ranks do not all round in the same direction. Nothing goes to
/// a path that is not `open`. A path of weight 0 is taken only if all open ones have 0. Repeated
/// calls interleave the paths as evenly as the weights allow, and move the counts towards weights
/// that have changed. Returns the number of paths if none is open.
[[nodiscard]] std::size_t next_path(std::span<double const> weights,
                                    std::span<std::int64_t const> counts,
                                    std::vector<bool> const& open, PathSharer sharer = {});

/// The least time, over all splits of the extents, in which the paths together can read and write
/// so many bytes. It is the bound for an update phase. An extent is read where it was written, so a
/// path has the same part of reads and writes: a path that only reads would soon be empty.
[[nodiscard]] Seconds bandwidth_bound(Bytes read_bytes, Bytes write_bytes,
                                      std::span<PathRate const> rates);

}  // namespace offstage::plan
