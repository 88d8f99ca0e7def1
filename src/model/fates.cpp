#include "model/fates.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace offstage::model {
namespace {

bool stays(BlockFates const& fates) {
  return fates == kept_block;
}

bool leaves(BlockFates const& fates) {
  return std::ranges::any_of(all_parts, [&](Part part) { return fates[part] == Fate::leave; });
}

}  // namespace

BlockRing::BlockRing(int blocks, std::vector<BlockFates> const& fates, int slabs)
    : fates_{fates.empty() ? std::vector<BlockFates>(static_cast<std::size_t>(blocks)) : fates},
      places_(static_cast<std::size_t>(blocks)) {
  require(std::ssize(fates_) == blocks && slabs > 0, "BlockRing: each block has its fates");
  for (BlockFates const& of : fates_) {
    require(of[Part::input] != Fate::recompute && of[Part::pointwise] != Fate::leave,
            "BlockRing: a block's input is not computed again, what is pointwise does not leave");
  }
  auto const in_ring = static_cast<int>(blocks - std::ranges::count_if(fates_, stays));
  slabs_ = std::min(in_ring, std::ranges::any_of(fates_, leaves) ? slabs : 1);
  for (Part const part : all_parts) {
    auto const has = [&](Fate fate) {
      return std::ranges::any_of(fates_, [&](BlockFates const& of) { return of[part] == fate; });
    };
    copies_[static_cast<std::size_t>(part)] = has(Fate::leave)       ? slabs_
                                              : has(Fate::recompute) ? 1
                                                                     : 0;
  }
  std::vector<int> latest(static_cast<std::size_t>(slabs_), none);
  int taken = 0;
  for (int block = 0; block < blocks; ++block) {
    if (stays(fates_[index(block)])) {
      continue;
    }
    int const slab = taken++ % slabs_;
    auto& before = latest[index(slab)];
    places_[index(block)] = {
        .slab = slab, .before = before, .last_of_slab = true, .last = taken == in_ring};
    if (before != none) {
      places_[index(before)].last_of_slab = false;
    }
    before = block;
  }
}

int BlockRing::copy(int block, Part part) const {
  if (fates_[index(block)][part] == Fate::keep) {
    return none;
  }
  return copies(part) == 1 ? 0 : slab(block);
}

BlockFates BlockRing::fates(int block) const {
  BlockFates fates = fates_[index(block)];
  Place const& place = places_[index(block)];
  for (Part const part : all_parts) {
    // With one copy every block of the ring uses it, because forward writes all parts that do not
    // stay.
    bool const last = copies(part) == 1 ? place.last : place.last_of_slab;
    // The pointwise part is not whole any more: hidden lies where other blocks compute
    // (BlockScratch).
    if (last && part != Part::pointwise) {
      fates[part] = Fate::keep;
    }
  }
  return fates;
}

bool BlockRing::any_leaves() const {
  for (int block = 0; block < blocks(); ++block) {
    if (leaves(fates(block))) {
      return true;
    }
  }
  return false;
}

}  // namespace offstage::model
