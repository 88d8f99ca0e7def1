#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/units.hpp"
#include "data/tokenizer.hpp"

namespace offstage::data {

/// Which tokenizer made PREFIX.bin. PREFIX.tokenizer, which `data pack` leaves beside it, says so.
struct TokenizerNote {
  std::string name;        ///< as --tokenizer was given
  std::uint64_t sample{};  ///< sample_of()
  Bytes bytes{};  ///< size of PREFIX.bin; a file of another size was not made by this tokenizer
  std::int64_t vocab{};  ///< the tokenizer's; 0: an older note does not tell it
  bool is_masked{};      ///< PREFIX.mask belongs to the tokens
};

/// XXH3 of the tokens of one fixed text: words of several languages, code, numbers, blanks and
/// signs. Tokenizers that split what people write into other tokens differ in it; other files of
/// the same tokenizer do not. nullopt: the tokenizer cannot take the text.
[[nodiscard]] std::optional<std::uint64_t> sample_of(Tokenizer const& tokenizer);

/// Errors: UsageError if something is at PREFIX.tokenizer and is no note.
void refuse_other_than_note(std::string const& prefix);

/// Writes the note of PREFIX.bin, which is there, in the place of an older one, and makes it last;
/// without a note, removes the older one. The file's size is written in the place of note->bytes.
/// Errors: IoError; those of refuse_other_than_note.
void write_note(std::string const& prefix, std::optional<TokenizerNote> const& note);

/// The path of a note: PREFIX.tokenizer of PREFIX, PREFIX.bin or PREFIX.idx.
[[nodiscard]] std::string note_path_of(std::string const& tokens_path);

/// The note of a file of tokens, of PREFIX, PREFIX.bin or PREFIX.idx; nullopt if there is none
/// that this user may read, or one of other tokens. Errors: IoError if that cannot be told.
[[nodiscard]] std::optional<TokenizerNote> note_beside(std::string const& tokens_path);

}  // namespace offstage::data
