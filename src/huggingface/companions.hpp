#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "huggingface/config.hpp"

namespace offstage::huggingface {

/// Companions of the weights of a Hugging Face model: files by their names, and token ids.
struct Companions {
  std::map<std::string, std::string> files;  ///< contents
  TokenIds ids;
};

/// A model whose tokens are bytes needs no tokenizer.
constexpr std::int64_t vocab_of_bytes = 256;

/// True for the files that read_companions takes over: tokenizer, chat template, generation_config.
[[nodiscard]] bool is_companion(std::string const& name);

/// The companions of the model, or of the tokenizer alone, in `directory`, for a model of `vocab`
/// tokens. Ids are those of its config.json, or without one those of bos_token and eos_token in
/// tokenizer_config.json, which also take the place of a number behind the last token, with a
/// warning. `eos`, a token's text, takes the place of its end token in all files. Tokens are those
/// of tokenizer.json, or of a SentencePiece model tokenizer.model without it.
/// Errors: DataError naming `key` and the path: no companion at all, a larger vocab_size, a
///         tokenizer with more tokens than the model (but for a pad token), an id that is no token,
///         no such token, no JSON.
[[nodiscard]] Companions read_companions(std::string const& directory, std::string const& key,
                                         std::int64_t vocab, std::optional<std::string> const& eos);

}  // namespace offstage::huggingface
