#include "train/effective_config.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "base/version.hpp"

namespace offstage::train {
namespace {

bool is_comment(Setting const& setting, RunConfig const& config) {
  auto const unused = unused_keys(config.optimizer);
  return setting.derived || setting.value.empty() ||
         std::ranges::find(unused, setting.key) != unused.end() ||
         (setting.key == "update.subgroup-size" && config.subgroup_is_default);
}

/// Blanks and quotes at the ends would be taken for those around a value.
std::string quoted(std::string const& value) {
  constexpr std::string_view marks = " \t\"'";
  bool const needed = !value.empty() && (marks.find(value.front()) != std::string_view::npos ||
                                         marks.find(value.back()) != std::string_view::npos ||
                                         value.find(" ;") != std::string::npos);
  char const mark = value.find('"') == std::string::npos ? '"' : '\'';
  return needed ? fmt::format("{}{}{}", mark, value, mark) : value;
}

constexpr char const* fresh_suffix = ".new";

/// What stands in the file; empty if there is none.
std::string old_text(std::string const& path) {
  int const descriptor = open_regular("run.dir: cannot open", path, O_RDONLY);
  if (descriptor < 0) {
    return {};
  }
  ::close(descriptor);
  std::ostringstream text;
  text << std::ifstream{path}.rdbuf();
  return text.str();
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

void require_records(RunConfig const& config) {
  for (char const* const name : {header_name, effective_config_name}) {
    std::string const path = (std::filesystem::path{config.run_dir} / name).string();
    (void)old_text(path);
    (void)old_text(path + fresh_suffix);
  }
}

void write_records(RunConfig const& config, Header const& header) {
  std::string text;
  for (std::string const& line : header.full) {
    text += printable(line) + '\n';
  }
  write_run_file(config, header_name, text);
  write_run_file(config, effective_config_name, effective_config(config));
}

void write_run_file(RunConfig const& config, std::string const& name, std::string const& text) {
  std::string const path = (std::filesystem::path{config.run_dir} / name).string();
  if (old_text(path) == text) {
    return;
  }
  std::string const fresh = path + fresh_suffix;
  OutputFile file{"run.dir", fresh, O_TRUNC};
  file.write(text);
  file.sync();
  file.close();
  if (std::rename(fresh.c_str(), path.c_str()) != 0) {
    throw IoError{"run.dir: cannot replace", path, errno};
  }
}

}  // namespace offstage::train
