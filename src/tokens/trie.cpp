#include "tokens/trie.hpp"

#include <utility>

namespace offstage::tokens {

Trie::Trie() : values_{-1}, roots_(256, -1), slots_(1024) {}

std::size_t Trie::place(std::int64_t key) const {
  auto const hash = (static_cast<std::uint64_t>(key) ^ static_cast<std::uint64_t>(key) >> 15) *
                    0x9E3779B97F4A7C15;
  for (std::size_t i = static_cast<std::size_t>(hash >> 32) % slots_.size();;
       i = (i + 1) % slots_.size()) {
    if (slots_[i].key == -1 || slots_[i].key == key) {
      return i;
    }
  }
}

std::int32_t Trie::child(std::int32_t node, unsigned char byte) const {
  if (node == 0) {
    return roots_[byte];
  }
  auto const key = std::int64_t{node} << 8 | byte;
  Slot const& slot = slots_[place(key)];
  return slot.key == key ? slot.node : -1;
}

void Trie::grow() {
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  for (Slot const& slot : old) {
    if (slot.key != -1) {
      slots_[place(slot.key)] = slot;
    }
  }
}

void Trie::put(std::string_view text, std::int32_t value) {
  std::int32_t node = 0;
  for (char const c : text) {
    auto const byte = static_cast<unsigned char>(c);
    auto next = child(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(values_.size());
      values_.push_back(-1);
      if (node == 0) {
        roots_[byte] = next;
      } else {
        if (2 * ++used_ > slots_.size()) {
          grow();
        }
        auto const key = std::int64_t{node} << 8 | byte;
        slots_[place(key)] = {key, next};
      }
    }
    node = next;
  }
  values_[static_cast<std::size_t>(node)] = value;
}

}  // namespace offstage::tokens
