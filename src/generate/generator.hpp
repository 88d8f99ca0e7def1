#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "generate/sampler.hpp"

namespace offstage::generate {

/// The logits of what follows `tokens` (at least one), one per token of the vocabulary; valid until
/// the next call.
using Logits = std::function<std::span<float const>(std::span<std::int32_t const> tokens)>;

struct Task {
  std::vector<std::int32_t> prompt;  ///< at least one token
  std::int64_t tokens{};             ///< to generate at most
  std::int64_t window{};             ///< tokens that the model can look at, at least 1
  std::int64_t vocab{};              ///< only tokens below are chosen; at most the model's
  std::vector<std::int32_t> ends{};  ///< tokens, each of which ends the text
  Sampling sampling{};
  std::uint32_t number = 0;  ///< among texts of one seed, each of which has its own random numbers
};

/// Continues the prompt token by token: on_token gets each but the end, and returns false for the
/// last one. When the context outgrows the window its older half is dropped; on_full is called the
/// first time.
/// Errors: DataError as sample's; what `logits` throws.
void generate(Task const& task, Logits const& logits,
              std::function<bool(std::int32_t)> const& on_token,
              std::function<void()> const& on_full);

}  // namespace offstage::generate
