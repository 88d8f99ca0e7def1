#pragma once

#include <string_view>

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

}  // namespace offstage
