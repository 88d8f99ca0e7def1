#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokens/fields.hpp"
#include "tokens/word_cache.hpp"

namespace offstage::tokens {

/// The field "model" of a tokenizer.json: turns pieces of a text into tokens.
/// Threads: any; each has a cache of its own.
class Model {
 public:
  virtual ~Model() = default;
  /// Appends the tokens of a piece, which is valid UTF-8 and not empty.
  virtual void encode(std::string_view piece, WordCache& cache,
                      std::vector<std::int32_t>& tokens) const = 0;
  /// The tokens' texts, by number; a number that no token has is nullopt.
  [[nodiscard]] virtual std::vector<std::optional<std::string>> const& texts() const = 0;
  [[nodiscard]] virtual std::optional<std::int32_t> find(std::string_view text) const = 0;
};

/// Known: BPE and Unigram. Errors: DataError naming file, field and value for what is not known.
[[nodiscard]] std::unique_ptr<Model> make_model(Fields fields);

/// Tokens beyond are a mistake in a file that shall not fill the memory.
constexpr std::int64_t largest_vocab = 16'777'216;
/// The number of a token in the field `name`. Errors: DataError, also for one from largest_vocab
/// on.
[[nodiscard]] std::int32_t token_number(Fields const& fields, char const* name,
                                        nlohmann::json const& value);

/// Tokens "<0x00>" to "<0xFF>", by byte; -1 for those that are missing.
[[nodiscard]] std::vector<std::int32_t> byte_tokens(Model const& model);

}  // namespace offstage::tokens
