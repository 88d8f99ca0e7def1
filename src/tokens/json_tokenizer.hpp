#pragma once

#include <memory>
#include <string>

#include "data/tokenizer.hpp"

namespace offstage::tokens {

/// Opens a tokenizer.json of Hugging Face's `tokenizers`: its tokens are those of the package's
/// encode(text, add_special_tokens=False), its texts those of decode(tokens,
/// skip_special_tokens=True).
///
/// Text:   bytes that are no UTF-8 become U+FFFD first.
/// Fields: all that change tokens are known or refused; "truncation" and "padding" are passed over,
///         which are about batches. The token that ends a document is "eos_token" of the file
///         tokenizer_config.json beside it, if there is one.
/// Errors: DataError naming `key`, path, field and value.
[[nodiscard]] std::unique_ptr<data::Tokenizer> open_json_tokenizer(std::string const& path,
                                                                   std::string const& key);

/// "add_bos_token" and "add_eos_token" of tokenizer_config.json beside the file of a SentencePiece
/// model. Errors: DataError naming `key` and the path if it is no such file.
[[nodiscard]] data::Around around_beside(std::string const& path, std::string const& key);

}  // namespace offstage::tokens
