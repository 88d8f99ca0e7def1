#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/loss_mask.hpp"
#include "data/token_file.hpp"
#include "data/tokenizer.hpp"

namespace offstage::cli {

/// A file of tokens, with what it takes to read it. Null: every token counts.
struct Readable {
  data::TokenFile const& file;
  data::LossMask const* mask;
  data::Tokenizer const& tokenizer;
};

/// The text of tokens `begin` to `end`, at most some thousands of them. Special tokens stand there
/// by their names, and {learn} and {/learn} around those that count, as in templates, unless there
/// is no mask.
/// Errors: DataError for a token that the tokenizer lacks; those of TokenFile and LossMask.
[[nodiscard]] std::string text_of(Readable const& what, std::int64_t begin, std::int64_t end);

/// Prints the first `count` parts, which begin at `begins` and are called `name`: "document".
/// Errors: those of text_of().
void show_parts(Readable const& what, std::vector<std::int64_t> const& begins, std::int64_t count,
                char const* name);

}  // namespace offstage::cli
