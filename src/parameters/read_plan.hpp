#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::parameters {

/// Elements [begin, end) of a shard; none if they are equal.
struct ShardRange {
  std::int64_t begin{};
  std::int64_t end{};
};

/// The rank's part of a layer.
[[nodiscard]] ShardRange part_of(state::ShardMap const& map, int layer, int rank);

/// The part of a range that comes from one extent.
struct ReadPiece {
  tiers::Key key{};
  std::int64_t in_range{};   ///< first element in the range
  std::int64_t in_extent{};  ///< first element in the extent
  std::int64_t elements{};
  bool fetches{};  ///< the extent's lease begins with it; else it goes on from the range before
  bool ends{};     ///< the lease ends with it; else the next range begins with that extent
};

/// Plans how ranges of a shard are put together from extents (one per subgroup), in their order,
/// with one lease at a time. An extent's lease goes on as long as the next range needs it, so that
/// going up or down through the shard fetches each extent once. After the last range no lease is
/// left. `subgroups` are the shard's, in order.
/// Errors: PreconditionError: a range that they do not cover.
[[nodiscard]] std::vector<std::vector<ReadPiece>> plan_reads(
    std::span<ShardRange const> ranges, std::span<state::Subgroup const> subgroups);

}  // namespace offstage::parameters
