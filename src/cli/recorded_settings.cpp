#include "cli/recorded_settings.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace offstage::cli {
namespace {

/// A key's part behind its section: "micro-batch".
bool is_key(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

/// The value without the quotes of base/quoted.hpp.
std::string_view unquoted(std::string_view value) {
  bool const has_quotes = value.size() > 1 && value.front() == value.back() &&
                          (value.front() == '"' || value.front() == '\'');
  return has_quotes ? value.substr(1, value.size() - 2) : value;
}

}  // namespace

std::map<std::string, std::string> read_recorded_settings(std::string_view text) {
  std::map<std::string, std::string> settings;
  std::string section;
  while (!text.empty()) {
    auto line = trimmed(take_until('\n', text));
    if (line.starts_with('[') && line.ends_with(']')) {
      section = line.substr(1, line.size() - 2);
      continue;
    }
    if (line.starts_with('#')) {
      line = trimmed(line.substr(1));
    }
    auto const equals = line.find('=');
    auto const key = trimmed(line.substr(0, equals));
    if (equals == std::string_view::npos || !is_key(key) || section.empty()) {
      continue;
    }
    std::string& all = settings[section + '.' + std::string{key}];
    all += all.empty() ? "" : " ";
    all += unquoted(trimmed(line.substr(equals + 1)));
  }
  return settings;
}

}  // namespace offstage::cli
