#pragma once

#include <cstdint>
#include <vector>

#include "tokens/pair_table.hpp"

namespace offstage::tokens {

/// Merges neighbours until no pair has a merge: the pair of the lowest rank first, of equal ones
/// the leftmost.
/// Time: n log n.
void merge_all(PairTable const& merges, std::vector<std::int32_t>& tokens);

}  // namespace offstage::tokens
