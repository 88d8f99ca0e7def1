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
///         which are about batches. The token that ends a document is the one that the files beside
///         it name: see Beside.
/// Errors: DataError naming `key`, path, field and value; those of read_beside and require_tokens.
[[nodiscard]] std::unique_ptr<data::Tokenizer> open_json_tokenizer(std::string const& path,
                                                                   std::string const& key);

}  // namespace offstage::tokens
