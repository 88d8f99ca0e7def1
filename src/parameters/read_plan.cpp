#include "parameters/read_plan.hpp"

#include <algorithm>

#include "base/chunk.hpp"
#include "base/error.hpp"

namespace offstage::parameters {
namespace {

std::int64_t end_of(state::Subgroup const& subgroup) {
  return subgroup.begin + subgroup.size;
}

/// The pieces of a range, ascending.
std::vector<ReadPiece> pieces_of(ShardRange range, std::span<state::Subgroup const> subgroups) {
  std::vector<ReadPiece> pieces;
  auto subgroup = std::ranges::upper_bound(subgroups, range.begin, {}, end_of);
  for (std::int64_t at = range.begin; at < range.end; ++subgroup) {
    require(subgroup != subgroups.end() && subgroup->begin <= at,
            "plan_reads: a range that no subgroup covers");
    std::int64_t const end = std::min(range.end, end_of(*subgroup));
    pieces.push_back({.key = subgroup->index,
                      .in_range = at - range.begin,
                      .in_extent = at - subgroup->begin,
                      .elements = end - at});
    at = end;
  }
  return pieces;
}

/// Returns whether the pieces begin with this extent, or would if their order were reversed.
bool begins_with(std::vector<ReadPiece> const& pieces, tiers::Key key) {
  return pieces.front().key == key || pieces.back().key == key;
}

}  // namespace

ShardRange part_of(state::ShardMap const& map, int layer, int rank) {
  std::int64_t const begin = map.shard_offset(layer, rank);
  return {begin, begin + map.chunks(layer, rank).count * chunk_elements};
}

std::vector<std::vector<ReadPiece>> plan_reads(std::span<ShardRange const> ranges,
                                               std::span<state::Subgroup const> subgroups) {
  std::vector<std::vector<ReadPiece>> plan;
  plan.reserve(ranges.size());
  for (ShardRange const range : ranges) {
    plan.push_back(pieces_of(range, subgroups));
  }
  std::optional<tiers::Key> held;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    auto& pieces = plan[i];
    if (pieces.empty()) {
      continue;  // this rank owns nothing of the layer; the lease may serve the next one
    }
    auto const next = std::find_if(plan.begin() + static_cast<std::ptrdiff_t>(i) + 1, plan.end(),
                                   [](auto const& later) { return !later.empty(); });
    bool const next_is_below = next != plan.end() && begins_with(*next, pieces.front().key) &&
                               !begins_with(*next, pieces.back().key);
    if (held == pieces.back().key || (held != pieces.front().key && next_is_below)) {
      std::ranges::reverse(pieces);
    }
    for (ReadPiece& piece : pieces) {
      piece.fetches = held != piece.key;
      piece.ends = &piece != &pieces.back() || next == plan.end() || !begins_with(*next, piece.key);
      held = piece.ends ? std::nullopt : std::optional{piece.key};
    }
  }
  return plan;
}

}  // namespace offstage::parameters
