#include "plan/places_in_turn.hpp"

#include <algorithm>
#include <deque>

namespace offstage::plan {

std::vector<PlaceInTurn> places_in_turn(std::span<Range const> subgroups,
                                        std::span<std::int64_t const> blocks, std::int64_t room) {
  std::vector<PlaceInTurn> places(subgroups.size());
  auto const block_of = [&](std::int64_t element) {
    return std::ranges::upper_bound(blocks, element) - blocks.begin();
  };
  struct Taken {
    std::size_t subgroup;
    Range place;
  };
  std::deque<Taken> taken;  // in the order of their sums: the first ones leave first
  std::int64_t next = 0;
  for (std::size_t i = subgroups.size(); i-- > 0;) {
    Range const& subgroup = subgroups[i];
    if (subgroup.count > room) {
      continue;
    }
    std::int64_t const begin = next + subgroup.count <= room ? next : 0;
    auto const overlaps = [&](Taken const& other) {
      return other.place.begin < begin + subgroup.count &&
             begin < other.place.begin + other.place.count;
    };
    auto const last = block_of(subgroup.begin + subgroup.count - 1);
    bool const is_free = std::ranges::all_of(taken, [&](Taken const& other) {
      return !overlaps(other) || block_of(subgroups[other.subgroup].begin) > last;
    });
    if (!is_free) {
      continue;
    }
    places[i].begin = begin;
    std::int64_t const end = begin + subgroup.count;
    for (Taken& other : taken) {
      if (overlaps(other)) {
        places[i].after = static_cast<std::int64_t>(other.subgroup);
        // Places go up from `begin`: what is left of the other one is its end.
        other.place = {end, std::max<std::int64_t>(0, other.place.begin + other.place.count - end)};
      }
    }
    std::erase_if(taken, [](Taken const& other) { return other.place.count == 0; });
    taken.push_back({i, {begin, subgroup.count}});
    next = end;
  }
  return places;
}

std::int64_t room_in_turn(std::span<std::int64_t const> blocks, std::int64_t elements,
                          std::int64_t largest) {
  std::int64_t largest_block = 0;
  std::int64_t end = elements;
  for (std::size_t i = blocks.size(); i-- > 0; end = blocks[i]) {
    largest_block = std::max(largest_block, end - blocks[i]);
  }
  return std::min(elements, 2 * largest_block + 3 * largest);
}

}  // namespace offstage::plan
