#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace offstage::data {

/// Turns text into tokens and back.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  [[nodiscard]] virtual std::int64_t vocab() const = 0;
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// Errors: DataError for a token outside the vocabulary.
  [[nodiscard]] virtual std::string decode(std::span<std::int32_t const> tokens) const = 0;
  /// What ends a document; nullopt if the tokenizer has no such token.
  [[nodiscard]] virtual std::optional<std::int32_t> end_of_document() const = 0;
};

/// "bytes", or the path of a SentencePiece model.
/// Errors: DataError naming `key` and the path if it is no such model.
[[nodiscard]] std::unique_ptr<Tokenizer> open_tokenizer(std::string const& name,
                                                        std::string const& key);

}  // namespace offstage::data
