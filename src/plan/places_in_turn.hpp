#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "base/range.hpp"

namespace offstage::plan {

/// A place for sums, in a room that the model's blocks have in turn.
struct PlaceInTurn {
  Range elements;           ///< part of a subgroup that lies in one block
  std::int64_t begin{};     ///< in the room
  std::int64_t after = -1;  ///< lowest element whose sums lay there before; below 0: none did
};

/// Places for subgroups whose sums are made from the last element down, a block of layers at a
/// time, and leave when they are complete: that of a block overlaps those of later blocks. Whoever
/// adds to a place waits until element `after` has left, and with it all above. What has no room
/// beside the rest of its block has no place. Ascending.
/// `subgroups`: ascending. `blocks`: elements where blocks begin, ascending, the first 0.
[[nodiscard]] std::vector<PlaceInTurn> places_in_turn(std::span<Range const> subgroups,
                                                      std::span<std::int64_t const> blocks,
                                                      std::int64_t room);

/// The place that has an element, of places that ascend by their `elements`; null: none has it.
template <class Places>
[[nodiscard]] auto* find_place(Places& places, std::int64_t element) {
  auto const behind = std::ranges::upper_bound(
      places, element, {}, [](auto const& place) { return place.elements.begin; });
  auto* const place = behind == places.begin() ? nullptr : &*std::prev(behind);
  bool const has_it = place != nullptr && element < place->elements.begin + place->elements.count;
  return has_it ? place : nullptr;
}

/// The largest of blocks that end at `elements`: room in which all have places.
[[nodiscard]] std::int64_t largest_block(std::span<std::int64_t const> blocks,
                                         std::int64_t elements);

}  // namespace offstage::plan
