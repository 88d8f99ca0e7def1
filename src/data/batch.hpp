#pragma once

#include <cstdint>
#include <vector>

namespace offstage::data {

/// A target that takes no part in the loss.
constexpr std::int32_t ignored_target = -1;

/// One micro-batch: token t of a row is followed by target t.
struct TokenBatch {
  std::int64_t batch{};               ///< B
  std::int64_t sequence{};            ///< T
  std::vector<std::int32_t> tokens;   ///< (B, T)
  std::vector<std::int32_t> targets;  ///< (B, T); ignored_target where a row holds no token
  /// (B, T) position at which each token's document begins; empty: a row is one document.
  std::vector<std::int32_t> begins{};
};

}  // namespace offstage::data
