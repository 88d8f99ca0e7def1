#pragma once

#include <cstdint>
#include <vector>

namespace offstage::data {

/// One micro-batch: token t of a row is followed by target t.
struct TokenBatch {
  std::int64_t batch{};               ///< B
  std::int64_t sequence{};            ///< T
  std::vector<std::int32_t> tokens;   ///< (B, T)
  std::vector<std::int32_t> targets;  ///< (B, T)
};

}  // namespace offstage::data
