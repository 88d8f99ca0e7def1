#pragma once

#include "data/tokenizer.hpp"
#include "tokens/fields.hpp"

namespace offstage::tokens {

/// The field "post_processor" of a tokenizer.json: what comes before and behind the tokens of a
/// text.
///
/// Known: ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence.
/// Errors: DataError naming file, field and value for what is not known.
[[nodiscard]] data::Frame read_frame(Fields fields);

}  // namespace offstage::tokens
