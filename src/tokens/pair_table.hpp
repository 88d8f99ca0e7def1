#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace offstage::tokens {

/// Merges of a BPE model: what two neighbouring tokens become, and how early.
/// Threads: any, once it is built.
class PairTable {
 public:
  struct Merge {
    std::int32_t rank = -1;  ///< lower ones first; -1: the two do not merge
    std::int32_t token{};    ///< token that the pair becomes
  };

  /// Room for so many pairs.
  explicit PairTable(std::size_t pairs);
  /// Sets the merge of a pair; the last one stays.
  void put(std::int32_t left, std::int32_t right, Merge merge);
  [[nodiscard]] Merge find(std::int32_t left, std::int32_t right) const;

 private:
  struct Slot {
    std::int32_t left = -1;
    std::int32_t right = -1;
    Merge merge;
  };
  [[nodiscard]] std::size_t place(std::int32_t left, std::int32_t right) const;
  std::vector<Slot> slots_;
  std::size_t mask_;
};

}  // namespace offstage::tokens
