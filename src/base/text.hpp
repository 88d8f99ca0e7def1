#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>
#include <system_error>

namespace offstage {

constexpr std::string_view blanks = " \t\r\n";
/// UTF-8's, which some editors write before a text.
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

/// The text without the blanks at both ends. A view of `text`.
[[nodiscard]] constexpr std::string_view trimmed(std::string_view text) {
  auto const begin = text.find_first_not_of(blanks);
  return begin == std::string_view::npos
             ? std::string_view{}
             : text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

/// Takes the text up to `mark` off `text`, and the mark too; all of it if there is no mark.
constexpr std::string_view take_until(char mark, std::string_view& text) {
  auto const taken = text.substr(0, text.find(mark));
  text.remove_prefix(std::min(taken.size() + 1, text.size()));
  return taken;
}

/// The number that the whole text is; nullopt if it is none, or beyond the type's range. `base`: of
/// a whole number.
template <class T>
[[nodiscard]] std::optional<T> number_in(std::string_view text, int base = 10) noexcept {
  T value{};
  auto const* const end = text.data() + text.size();
  std::from_chars_result result;
  if constexpr (std::floating_point<T>) {
    result = std::from_chars(text.data(), end, value);
  } else {
    result = std::from_chars(text.data(), end, value, base);
  }
  return result.ec == std::errc{} && result.ptr == end ? std::optional{value} : std::nullopt;
}

}  // namespace offstage
