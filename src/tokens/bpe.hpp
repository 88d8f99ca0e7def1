#pragma once

#include <cstdint>
#include <memory>

#include "tokens/model.hpp"

namespace offstage::tokens {

/// Byte-pair encoding: characters merge two by two, the pair of the lowest rank first, of equal
/// ones the leftmost.
///
/// Fields: vocab, merges, unk_token, fuse_unk, byte_fallback, ignore_merges,
///         continuing_subword_prefix, end_of_word_suffix; dropout has to be 0.
/// Time:   about linear in the text: a piece is cut where no merge can ever join two neighbouring
///         characters, and what is left merges in n log n.
/// Errors: DataError naming file, field and value.
[[nodiscard]] std::unique_ptr<Model> make_bpe(Fields& fields);

}  // namespace offstage::tokens
