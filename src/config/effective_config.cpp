#include "config/effective_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/quoted.hpp"
#include "base/version.hpp"

namespace offstage::config {
namespace {

bool is_comment(Setting const& setting, RunConfig const& config) {
  auto const unused = unused_keys(config);
  return setting.derived || setting.value.empty() ||
         std::ranges::find(unused, setting.key, &UnusedKey::key) != unused.end() ||
         (setting.key == "update.subgroup-size" && config.subgroup_is_default);
}

/// The setting's value. Whoever looks for a run's checkpoints may stand elsewhere than the run did.
std::string value_of(Setting const& setting) {
  return setting.key == "checkpoint.dir" && !setting.derived
             ? std::filesystem::absolute(setting.value).lexically_normal().string()
             : setting.value;
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
                        setting.key.substr(dot + 1), quoted(value_of(setting)));
  }
  return text;
}

}  // namespace offstage::config
