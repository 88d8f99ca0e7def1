#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/key_table.hpp"

namespace offstage::cli {

/// A key's value as it was written, and its place.
struct Given {
  std::string value;
  std::string origin;  ///< "--train.steps=50", "a.cfg:12"
  bool from_file{};

  [[nodiscard]] std::string where() const {
    return from_file ? fmt::format(" ({})", origin) : std::string{};
  }
};

/// Values by key; one value unless the key is repeatable. The values of one source stay together.
/// The first list stored stays, so the source of the highest precedence comes first.
using Values = std::map<std::string, std::vector<Given>>;

struct CommandLine {
  std::vector<std::string> files;  ///< values of --config
  Values values;
  std::map<std::string, std::string> extra;  ///< options that are no keys; the last one counts
};

/// The section of a key: "train" of "train.steps".
[[nodiscard]] inline std::string_view section_of(config::Key const& key) {
  return key.name.substr(0, key.name.find('.'));
}

/// Reads keys, --config and options named in `extra`, each with a value.
/// Errors: UsageError: an unknown key (names what to write instead), an argument that is no option,
///         a `#` or a control character other than a tab in a path.
[[nodiscard]] CommandLine parse_command_line(std::vector<std::string> const& arguments,
                                             std::vector<std::string> const& extra = {});

/// Reads a config file.
/// Errors: UsageError naming the file and the line: no such file, not a config file, an unknown
///         section or key (names what to write instead), a key twice, a `#` or a control character
///         other than a tab in a path.
[[nodiscard]] Values read_config_file(std::string const& path);

/// Reads a config file's text. `name` is the file's name in errors and origins.
/// Errors: as read_config_file.
[[nodiscard]] Values read_config_text(std::string_view text, std::string const& name);

}  // namespace offstage::cli
