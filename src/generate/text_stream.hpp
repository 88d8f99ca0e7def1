#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.hpp"

namespace offstage::generate {

/// Turns tokens that come one by one into text as soon as it is certain: a character of UTF-8 whose
/// bytes come in several tokens is held back until it is whole, for three tokens at most. The
/// pieces together are what the tokenizer makes of all tokens together.
/// Errors: DataError as the tokenizer's.
class TextStream {
 public:
  explicit TextStream(data::Tokenizer const& tokenizer) : tokenizer_{tokenizer} {}

  /// The text that this token makes certain; may be empty.
  [[nodiscard]] std::string add(std::int32_t token);
  /// A token whose text is not wanted.
  void pass_over(std::int32_t token);
  /// Returns the bytes that were held back, whole characters or not.
  [[nodiscard]] std::string finish();

 private:
  [[nodiscard]] std::string take(bool all);

  data::Tokenizer const& tokenizer_;
  std::vector<std::int32_t> window_;  ///< the last tokens that made text, then those held back
  std::size_t shown_ = 0;             ///< how many of them are not held back
};

}  // namespace offstage::generate
