#pragma once

#include <memory>
#include <optional>
#include <string>

#include "data/tokenizer.hpp"

namespace offstage::tokens {

/// The file that open_tokenizer() reads; null for "bytes".
[[nodiscard]] std::optional<std::string> tokenizer_file(std::string const& name);

/// "bytes", the path of a SentencePiece model, of a tokenizer.json (any name that ends in .json),
/// or of a directory with one; a directory without one may have a SentencePiece tokenizer.model.
/// The files beside it say what ends a document, and what tokens there must be: see Beside.
/// Errors: DataError naming `key` and the path if it is no such file; those of require_tokens.
[[nodiscard]] std::unique_ptr<data::Tokenizer> open_tokenizer(std::string const& name,
                                                              std::string const& key);

}  // namespace offstage::tokens
