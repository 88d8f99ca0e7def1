#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace offstage::tokens {

/// Characters of Unicode in UTF-8. Texts are valid UTF-8 unless a contract says otherwise.
/// Properties and normal forms are ICU's, of the characters that the `tokenizers` package knows,
/// too: it has older tables for some.
/// Threads: any.

/// The character that begins at text[at]; moves `at` behind it.
[[nodiscard]] char32_t next_character(std::string_view text, std::size_t& at);
/// The character that ends before text[at]; moves `at` to where it begins.
[[nodiscard]] char32_t previous_character(std::string_view text, std::size_t& at);
/// Bytes of the character that begins with this byte.
[[nodiscard]] std::size_t character_bytes(char first);
void append_character(std::string& text, char32_t character);

/// True for valid UTF-8: no surrogates, no overlong forms, nothing beyond U+10FFFF. Any bytes.
[[nodiscard]] bool is_valid(std::string_view bytes);
/// Any bytes as UTF-8: each longest part of a character that does not go on becomes one U+FFFD, as
/// in Python's errors="replace".
[[nodiscard]] std::string replace_invalid(std::string_view bytes);
/// Number of bytes that replace_invalid replaces, and the place of the first.
struct Invalid {
  std::int64_t bytes{};
  std::size_t first{};
};
[[nodiscard]] Invalid find_invalid(std::string_view bytes);

enum class Form { nfc, nfd, nfkc, nfkd };
/// Brings a text into a normal form.
void normalize(std::string& text, Form form);
/// Lower case character by character, whatever stands beside it.
void lowercase(std::string& text);

[[nodiscard]] bool is_space(char32_t character);   ///< White_Space
[[nodiscard]] bool is_number(char32_t character);  ///< categories Nd, Nl, No
/// ASCII's punctuation and symbols, and the categories P*.
[[nodiscard]] bool is_punctuation(char32_t character);
[[nodiscard]] bool is_mark(char32_t character);  ///< categories Mn, Mc, Me
/// Alphabetic, marks, decimal digits, connectors and join controls.
[[nodiscard]] bool is_word(char32_t character);

}  // namespace offstage::tokens
