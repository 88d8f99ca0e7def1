#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "data/token_file.hpp"

namespace offstage::data {

/// Facts about a file of tokens.
struct Summary {
  std::int64_t tokens{};
  std::int32_t smallest{};  ///< token
  std::int32_t largest{};   ///< token
  /// Entropy of single tokens, in nats: the loss of a model that knows frequencies alone.
  double unigram_entropy{};
  /// Ascending tokens per document; nullopt if nothing tells them apart.
  std::optional<std::vector<std::int64_t>> document_tokens;
};

/// Reads a whole file. Documents end as the format says, or else with `separator`.
/// Memory: 8 bytes per document (twice while it reads), and 8 per token from 0 to the largest one.
/// Errors: those of TokenFile.
[[nodiscard]] Summary summarize(TokenFile const& file, std::optional<std::int32_t> separator);

}  // namespace offstage::data
