#pragma once

#include <memory>

#include "tokens/model.hpp"

namespace offstage::tokens {

/// Unigram language model (SentencePiece): of all ways to cut a piece into tokens, the one with the
/// greatest sum of scores; of equal ones the one whose last token is the longest.
///
/// Fields: vocab (texts with scores), unk_id, byte_fallback.
/// Time:   linear in the piece, times the longest token.
/// Errors: DataError naming file, field and value; from encode() for a character that no token has,
///         where the model has no token for it.
[[nodiscard]] std::unique_ptr<Model> make_unigram(Fields& fields);

}  // namespace offstage::tokens
