#pragma once

#include <string>

#include "huggingface/json_text.hpp"

namespace offstage::tokens {

/// The object in one of a tokenizer's files.
/// Errors: DataError naming `key` and the path: no JSON, no object, too large, a pointer of Git
/// LFS; those
///         of data::InputFile.
[[nodiscard]] huggingface::JsonTree read_json(std::string const& path, std::string const& key);

}  // namespace offstage::tokens
