#include "tokens/pair_table.hpp"

#include <algorithm>
#include <bit>

namespace offstage::tokens {

PairTable::PairTable(std::size_t pairs)
    : slots_(std::bit_ceil(std::max<std::size_t>(16, 2 * pairs))), mask_{slots_.size() - 1} {}

std::size_t PairTable::place(std::int32_t left, std::int32_t right) const {
  auto const key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
                   static_cast<std::uint32_t>(right);
  std::uint64_t const hash = (key ^ key >> 29) * 0x9E3779B97F4A7C15;
  for (std::size_t i = static_cast<std::size_t>(hash >> 32) & mask_;; i = (i + 1) & mask_) {
    Slot const& slot = slots_[i];
    if (slot.left == -1 || (slot.left == left && slot.right == right)) {
      return i;
    }
  }
}

void PairTable::put(std::int32_t left, std::int32_t right, Merge merge) {
  slots_[place(left, right)] = {left, right, merge};
}

PairTable::Merge PairTable::find(std::int32_t left, std::int32_t right) const {
  return slots_[place(left, right)].merge;
}

}  // namespace offstage::tokens
