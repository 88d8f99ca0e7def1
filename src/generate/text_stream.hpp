#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.hpp"

namespace offstage::generate {

/// Turns tokens that come one by one into text as soon as it is certain. The end of a text that may
/// still become a character is held back: the first bytes of one, or the last three U+FFFD, which
/// tokenizers put for bytes of a character that is not whole.
///
/// Text:   pieces are valid UTF-8 if the tokenizer's texts are; "bytes" passes all bytes on as they
///         are. The pieces together are what the tokenizer makes of all tokens together, with one
///         exception. Byte fallback turns a whole run of bytes into U+FFFD if one of them is
///         invalid. Characters of the run that were given before stay, and the bytes behind them
///         are decoded as a run of their own.
/// Errors: DataError as the tokenizer's.
class TextStream {
 public:
  explicit TextStream(data::Tokenizer const& tokenizer) : tokenizer_{tokenizer} {}

  /// The text that this token makes certain; may be empty.
  [[nodiscard]] std::string add(std::int32_t token);
  /// A token whose text is not wanted.
  void pass_over(std::int32_t token);
  /// Returns the text that was held back.
  [[nodiscard]] std::string finish();

 private:
  [[nodiscard]] std::string take(bool all);
  void forget_changed(std::string& text);
  void settle();

  data::Tokenizer const& tokenizer_;
  /// Tokens whose text was given, as few as the next ones' text depends on, then those of which
  /// some is held back.
  std::vector<std::int32_t> window_;
  std::size_t settled_ = 0;       ///< number of the former
  std::size_t settled_size_ = 0;  ///< bytes of `given_` that are theirs
  std::string given_;             ///< the window's text as far as it was given
};

}  // namespace offstage::generate
