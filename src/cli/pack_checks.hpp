#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/token_file.hpp"
#include "data/tokenizer.hpp"
#include "pack/packer.hpp"

namespace offstage::cli {

// Looks at what goes into a pack, and at what came of it.

/// Refuses files that are no text, and JSON that is not named as JSON lines unless --documents says
/// what its documents are. A warning says of such JSON that it becomes tokens as it stands.
/// Errors: DataError naming the file and what to do; those of open_stream.
void look_for_lookalikes(std::vector<pack::Text> const& texts, bool kind_is_given);

/// Says so if the tokenizer puts a token before texts and the pack does not, as generate and
/// transformers will, and warns if the pack does where the first text has it already.
void tell_of_begin(pack::Task const& task, data::Tokenizer const& tokenizer);

/// Warns of what a template seems to lack, `name` is its path: an end of what is learned, and
/// tokens that look like special ones and are none.
void warn_of_template(pack::Template const& form, data::Tokenizer const& tokenizer,
                      std::string const& name);

/// Says so if a chat template lies beside the tokenizer, which is not that of the pack. `name` is
/// the tokenizer's. Errors: those of InputFile.
void tell_of_chat_template(std::string const& name);

/// Looks for a token of the template that ends conversations and nothing else.
/// Errors: UsageError if there is none and the format does not store where they end.
void check_conversation_ends(pack::Template const& form, data::Tokenizer const& tokenizer,
                             data::Format format);

/// Looks for documents that a model cannot tell apart. `name` is that of the tokenizer.
/// Errors: UsageError for a format that does not store where they end.
void check_ends(pack::Task const& task, data::Tokenizer const& tokenizer, std::string const& name,
                data::Format format);

/// Logs warnings of conversations and lines that were left out, of bytes that were replaced, of
/// special tokens in texts, of conversations that are learned otherwise than meant, and of fields
/// without effect. `longest`: --longest.
void warn_of_conversations(pack::Conversations const& all, std::int64_t longest);
void warn_of_bad(pack::Noticed const& bad);
void warn_of_replaced(pack::Noticed const& replaced);
void warn_of_specials(pack::Noticed const& specials);

}  // namespace offstage::cli
