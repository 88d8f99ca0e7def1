#include "config/effective_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/version.hpp"

namespace offstage::config {
namespace {

bool is_comment(Setting const& setting, RunConfig const& config) {
  auto const unused = unused_keys(config);
  return setting.derived || setting.value.empty() ||
         std::ranges::find(unused, setting.key, &UnusedKey::key) != unused.end() ||
         (setting.key == "update.subgroup-size" && config.subgroup_is_default);
}

/// Quotes a value whose blanks or quotes at its ends would be taken for those around a value.
std::string quoted(std::string const& value) {
  constexpr std::string_view marks = " \t\"'";
  bool const needed = !value.empty() && (marks.find(value.front()) != std::string_view::npos ||
                                         marks.find(value.back()) != std::string_view::npos ||
                                         value.find(" ;") != std::string::npos);
  char const mark = value.find('"') == std::string::npos ? '"' : '\'';
  return needed ? fmt::format("{}{}{}", mark, value, mark) : value;
}

}  // namespace

std::string effective_config(RunConfig const& config) {
  std::string text = fmt::format(
      "# What this run was told, with defaults, for offstage train --config (offstage {}).\n",
      version());
  std::string section;
  for (Setting const& setting : config.settings) {
    auto const dot = setting.key.find('.');
    if (auto const name = setting.key.substr(0, dot); name != section) {
      section = name;
      text += fmt::format("\n[{}]\n", section);
    }
    text += fmt::format("{}{} = {}\n", is_comment(setting, config) ? "# " : "",
                        setting.key.substr(dot + 1), quoted(setting.value));
  }
  return text;
}

}  // namespace offstage::config
