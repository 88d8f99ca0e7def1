#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace offstage::tokens {

/// Texts with a number each, found from where they begin.
/// Threads: any, once it is built.
class Trie {
 public:
  Trie();
  /// The last number of equal texts stays.
  void put(std::string_view text, std::int32_t value);
  /// Calls found(length, value) for every text that `text` begins with, shortest first.
  template <class Found>
  void prefixes(std::string_view text, Found const& found) const {
    std::int32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node < 0) {
        return;
      }
      if (auto const value = values_[static_cast<std::size_t>(node)]; value >= 0) {
        found(i + 1, value);
      }
    }
  }

 private:
  struct Slot {
    std::int64_t key = -1;  ///< node and byte
    std::int32_t node{};
  };
  [[nodiscard]] std::int32_t child(std::int32_t node, unsigned char byte) const;
  [[nodiscard]] std::size_t place(std::int64_t key) const;
  void grow();

  std::vector<std::int32_t> values_;  ///< by node, -1 for none
  std::vector<std::int32_t> roots_;   ///< children of the first node, by byte
  std::vector<Slot> slots_;           ///< children of the others
  std::size_t used_{};
};

}  // namespace offstage::tokens
