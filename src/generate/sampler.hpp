#pragma once

#include <cstdint>
#include <span>

namespace offstage::generate {

/// How the next token is chosen from logits.
struct Sampling {
  double temperature{};  ///< the logits are divided by it; 0 takes the largest
  std::int64_t top_k{};  ///< only so many of the largest take part; 0: all
  /// Share of probability: the sampler takes only the likeliest tokens, as few as have together
  /// this share or more; 1: all.
  double top_p = 1.0;
  std::uint64_t seed{};
};

/// The token that random number `draw` of the seed chooses: of equal logits the lower id is the
/// larger one. A function of the arguments alone: softmax in FP64, summed in order of ids, and one
/// Philox number per (seed, draw).
/// Errors:   DataError if a logit is not finite (a model that diverged). `logits` is not empty.
[[nodiscard]] std::int32_t sample(std::span<float const> logits, Sampling const& sampling,
                                  std::uint64_t draw);

}  // namespace offstage::generate
