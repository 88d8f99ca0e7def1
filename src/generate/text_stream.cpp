#include "generate/text_stream.hpp"

#include <algorithm>
#include <bit>
#include <span>
#include <string_view>

namespace offstage::generate {
namespace {

// A character has four bytes at most, and a token at least one.
constexpr std::size_t most_held = 3;

/// True if the text ends in the middle of a character, or with the mark that tokenizers put for
/// one.
bool ends_early(std::string_view text) {
  if (text.ends_with("\uFFFD")) {
    return true;
  }
  for (std::size_t back = 1; back <= std::min<std::size_t>(most_held, text.size()); ++back) {
    auto const byte = static_cast<unsigned char>(text[text.size() - back]);
    auto const ones = static_cast<std::size_t>(std::countl_one(byte));
    if (ones != 1) {  // the first byte of a character: as many ones as it has bytes, or none
      return ones <= 4 && ones > back;
    }
  }
  return false;
}

}  // namespace

std::string TextStream::add(std::int32_t token) {
  window_.push_back(token);
  return take(false);
}

void TextStream::pass_over(std::int32_t token) {
  window_.push_back(token);
  shown_ = window_.size();
}

std::string TextStream::finish() {
  return take(true);
}

std::string TextStream::take(bool all) {
  // With the tokens before: alone, some tokenizers strip a piece's leading blank.
  std::string const before = tokenizer_.decode(std::span{window_}.first(shown_));
  std::string const text = tokenizer_.decode(window_);
  bool const hold = !all && window_.size() - shown_ <= most_held && ends_early(text);
  if (hold || text.size() <= before.size()) {
    return {};
  }
  window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(shown_));
  shown_ = window_.size();
  return text.substr(before.size());
}

}  // namespace offstage::generate
