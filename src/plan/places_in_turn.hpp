#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/range.hpp"

namespace offstage::plan {

/// A place for the sums of a subgroup, in a room that subgroups have in turn.
struct PlaceInTurn {
  std::int64_t begin = -1;  ///< elements; below 0: it has none
  std::int64_t after = -1;  ///< lowest subgroup whose sums lay there; below 0: none did
};

/// Places for subgroups whose sums are made from the last one down, a block of layers at a time, and
/// leave when they are complete. A place may overlap those of subgroups that are complete before its
/// own block begins: whoever adds to it waits until subgroup `after` has left, and with it all above.
/// `subgroups`: ascending. `blocks`: elements where blocks begin, ascending, the first 0.
[[nodiscard]] std::vector<PlaceInTurn> places_in_turn(std::span<Range const> subgroups,
                                                      std::span<std::int64_t const> blocks,
                                                      std::int64_t room);

/// Room that is enough for places of all of them: two blocks, a subgroup at each end of one, and one
/// that has no room before the end. `elements`: of all, `largest`: of the largest subgroup.
[[nodiscard]] std::int64_t room_in_turn(std::span<std::int64_t const> blocks, std::int64_t elements,
                                        std::int64_t largest);

}  // namespace offstage::plan
