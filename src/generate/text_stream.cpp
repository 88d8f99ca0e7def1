#include "generate/text_stream.hpp"

#include <algorithm>
#include <bit>
#include <span>
#include <string_view>

namespace offstage::generate {
namespace {

// A character has four bytes at most, so that at most three wait for others.
constexpr std::size_t most_held = 3;
// The mark that tokenizers put for a byte that is no character.
constexpr std::string_view mark = "\uFFFD";

/// Bytes of a character that the text ends in the middle of; 0 if it does not.
std::size_t unfinished_bytes(std::string_view text) {
  for (std::size_t back = 1; back <= std::min(most_held, text.size()); ++back) {
    auto const byte = static_cast<unsigned char>(text[text.size() - back]);
    auto const ones = static_cast<std::size_t>(std::countl_one(byte));
    if (ones != 1) {  // the first byte of a character: as many ones as it has bytes, or none
      return ones <= 4 && ones > back ? back : 0;
    }
  }
  return 0;
}

/// Bytes of the text that no further token changes, unless a byte spoils its run.
std::size_t certain_bytes(std::string_view text) {
  std::string_view certain = text.substr(0, text.size() - unfinished_bytes(text));
  for (std::size_t i = 0; i < most_held && certain.ends_with(mark); ++i) {
    certain.remove_suffix(mark.size());
  }
  return certain.size();
}

/// Bytes of the longest text of whole characters that both begin with.
std::size_t common_bytes(std::string_view a, std::string_view b) {
  auto const differs = std::ranges::mismatch(a, b).in1;
  auto size = static_cast<std::size_t>(differs - a.begin());
  auto const in_character = [&](std::string_view text) {
    return size < text.size() && (static_cast<unsigned char>(text[size]) & 0xC0U) == 0x80U;
  };
  while (size > 0 && (in_character(a) || in_character(b))) {
    --size;
  }
  return size;
}

}  // namespace

std::string TextStream::add(std::int32_t token) {
  window_.push_back(token);
  return take(false);
}

void TextStream::pass_over(std::int32_t token) {
  window_.push_back(token);
  static_cast<void>(take(true));  // keeps the window short
}

std::string TextStream::finish() {
  return take(true);
}

std::string TextStream::take(bool all) {
  // With the tokens before: alone, some tokenizers strip a piece's leading blank.
  std::string text = tokenizer_.decode(window_);
  if (!text.starts_with(given_)) {
    forget_changed(text);
  }
  std::size_t const certain = all ? text.size() : std::max(certain_bytes(text), given_.size());
  std::string piece = text.substr(given_.size(), certain - given_.size());
  given_ = text.substr(0, certain);
  if (certain == text.size()) {
    // A token without text may change that of the next one, as a first blank does.
    if (!piece.empty()) {
      window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(settled_));
    }
    settle();
  }
  return piece;
}

/// The settled tokens have another text now: goes on without them. `text` becomes that of the
/// others.
void TextStream::forget_changed(std::string& text) {
  std::string const rest = given_.substr(settled_size_);
  window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(settled_));
  settled_ = 0;
  settled_size_ = 0;
  text = tokenizer_.decode(window_);
  given_ = text.substr(0, common_bytes(text, rest));
}

void TextStream::settle() {
  given_ = tokenizer_.decode(window_);
  settled_ = window_.size();
  settled_size_ = given_.size();
}

}  // namespace offstage::generate
