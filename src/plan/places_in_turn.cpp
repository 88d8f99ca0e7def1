#include "plan/places_in_turn.hpp"

#include <algorithm>
#include <cstddef>

namespace offstage::plan {
namespace {

/// Part of a block whose sums wait for a place.
struct Piece {
  Range elements;
  std::size_t block;
};

std::vector<Piece> pieces_of(std::span<Range const> subgroups,
                             std::span<std::int64_t const> blocks) {
  std::vector<Piece> pieces;
  for (Range const& subgroup : subgroups) {
    std::int64_t const end = subgroup.begin + subgroup.count;
    for (std::int64_t begin = subgroup.begin; begin < end;) {
      auto const next = std::ranges::upper_bound(blocks, begin);
      std::int64_t const stop = next == blocks.end() ? end : std::min(end, *next);
      pieces.push_back({.elements = {begin, stop - begin},
                        .block = static_cast<std::size_t>(next - blocks.begin())});
      begin = stop;
    }
  }
  return pieces;
}

/// The room, and whose sums lie where.
class Room {
 public:
  explicit Room(std::int64_t size) : size_{size} {}

  /// Begins a block of so many elements: in one piece, if it can be.
  void begin_block(std::int64_t elements) {
    if (next_ + elements > size_) {
      next_ = 0;
    }
  }
  [[nodiscard]] bool has_room(std::int64_t elements) const { return next_ + elements <= size_; }
  [[nodiscard]] PlaceInTurn take(Range elements) {
    PlaceInTurn place{.elements = elements, .begin = next_, .after = -1};
    next_ += elements.count;
    for (Taken& other : taken_) {
      if (other.begin < next_ && place.begin < other.end) {
        place.after = place.after < 0 ? other.lowest : std::min(place.after, other.lowest);
        other.begin = std::min(next_, other.end);  // places go up
      }
    }
    std::erase_if(taken_, [](Taken const& other) { return other.begin == other.end; });
    taken_.push_back({.lowest = elements.begin, .begin = place.begin, .end = next_});
    return place;
  }

 private:
  struct Taken {
    std::int64_t lowest;  ///< element
    std::int64_t begin, end;
  };

  std::int64_t size_;
  std::int64_t next_ = 0;
  std::vector<Taken> taken_;
};

}  // namespace

std::vector<PlaceInTurn> places_in_turn(std::span<Range const> subgroups,
                                        std::span<std::int64_t const> blocks, std::int64_t room) {
  auto const pieces = pieces_of(subgroups, blocks);
  std::vector<std::int64_t> elements(blocks.size() + 1);
  for (Piece const& piece : pieces) {
    elements[piece.block] += piece.elements.count;
  }
  Room taken{room};
  std::vector<PlaceInTurn> places;
  std::size_t block = elements.size();
  for (std::size_t i = pieces.size(); i-- > 0;) {
    Piece const& piece = pieces[i];
    if (piece.block != block) {
      block = piece.block;
      taken.begin_block(elements[block]);
    }
    if (taken.has_room(piece.elements.count)) {
      places.push_back(taken.take(piece.elements));
    }
  }
  std::ranges::reverse(places);
  return places;
}

std::int64_t largest_block(std::span<std::int64_t const> blocks, std::int64_t elements) {
  std::int64_t largest = 0;
  std::int64_t end = elements;
  for (std::size_t i = blocks.size(); i-- > 0; end = blocks[i]) {
    largest = std::max(largest, end - blocks[i]);
  }
  return largest;
}

}  // namespace offstage::plan
