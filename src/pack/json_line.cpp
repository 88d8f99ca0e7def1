#include "pack/json_line.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace offstage::pack {
namespace {

/// Longer names first: the sign belongs to the number.
constexpr std::array<std::string_view, 3> python_numbers{"-Infinity", "Infinity", "NaN"};

/// Returns where the text ends whose first quote is at `quote`: behind its last quote.
std::size_t end_of_text(std::string_view line, std::size_t quote) {
  auto at = quote + 1;
  while (at < line.size() && line[at] != '"') {
    at += line[at] == '\\' ? 2 : 1;
  }
  return std::min(at + 1, line.size());
}

}  // namespace

std::string_view with_nulls(std::string_view line, std::string& changed) {
  if (line.find("NaN") == line.npos && line.find("Infinity") == line.npos) {
    return line;
  }
  changed.clear();
  for (std::size_t at = 0; at < line.size();) {
    auto const rest = line.substr(at);
    auto const* const number =
        std::ranges::find_if(python_numbers, [&](auto name) { return rest.starts_with(name); });
    if (number != python_numbers.end()) {
      changed += "null";
      at += number->size();
      continue;
    }
    auto const end = rest.front() == '"' ? end_of_text(line, at) : at + 1;
    changed += line.substr(at, end - at);
    at = end;
  }
  return changed;
}

}  // namespace offstage::pack
