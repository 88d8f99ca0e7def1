#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/token_file.hpp"
#include "data/tokenizer.hpp"
#include "pack/packer.hpp"

namespace offstage::cli {

// Looks at what goes into a pack, and at what came of it.

/// Refuses files that are no text, and JSON that is not named as JSON lines unless --documents says what
/// its documents are. A warning says of such JSON that it becomes tokens as it stands.
/// Errors: DataError naming the file and what to do; those of open_stream.
void look_for_lookalikes(std::vector<pack::Text> const& texts, bool kind_is_given);

/// Says so if the tokenizer puts tokens before texts and the pack does not, as generate and transformers
/// will.
void tell_of_begin(pack::Task const& task, data::Tokenizer const& tokenizer);

/// Looks for documents that a model cannot tell apart. `name` is that of the tokenizer.
/// Errors: UsageError for a format that does not store where they end.
void check_ends(pack::Task const& task, data::Tokenizer const& tokenizer, std::string const& name,
                data::Format format);

/// Logs warnings of conversations and lines that were left out, of bytes that were replaced, of
/// conversations that are learned otherwise than meant, and of fields without effect. `longest`: --longest.
void warn_of_conversations(pack::Conversations const& all, std::int64_t longest);
void warn_of_bad(pack::Bad const& bad);
void warn_of_replaced(pack::Replaced const& replaced);

}  // namespace offstage::cli
