#include "base/quoted.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/text.hpp"

namespace offstage {
namespace {

bool is_blank(char character) {
  return blanks.find(character) != std::string_view::npos;
}

/// Returns whether a `;` begins a comment: at the value's begin, or behind a blank.
bool has_comment(std::string_view value) {
  for (auto at = value.find(';'); at != std::string_view::npos; at = value.find(';', at + 1)) {
    if (at == 0 || is_blank(value[at - 1])) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool fits_a_line(std::string_view value) {
  return std::ranges::none_of(value,
                              [](unsigned char c) { return c != '\t' && std::iscntrl(c) != 0; });
}

std::string quoted(std::string const& value) {
  constexpr std::string_view marks = "\"'";
  bool const needed =
      !value.empty() && (is_blank(value.front()) || is_blank(value.back()) ||
                         marks.find(value.front()) != std::string_view::npos ||
                         marks.find(value.back()) != std::string_view::npos || has_comment(value));
  char const mark = value.find('"') == std::string::npos ? '"' : '\'';
  return needed ? fmt::format("{}{}{}", mark, value, mark) : value;
}

}  // namespace offstage
