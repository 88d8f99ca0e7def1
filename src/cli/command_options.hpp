#pragma once

#include <fmt/format.h>

#include <boost/program_options.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "cli/commands.hpp"
#include "config/key_values.hpp"

namespace offstage::cli {

using GivenOptions = boost::program_options::variables_map;

/// Reads the options of a command other than train: --name VALUE or --name=VALUE, whole names, each
/// once unless it composes. `words` names the option that takes arguments without a name; empty:
/// such an argument is an error.
/// Errors: UsageError that names the option, the nearest one if it is unknown, and
///         `offstage COMMAND --help`: unknown, without value, given twice, required and missing.
[[nodiscard]] GivenOptions parse_command_options(
    Arguments const& arguments, boost::program_options::options_description const& known,
    std::string const& command, std::string const& words = "");

/// The text of an option that is given or has a default.
[[nodiscard]] inline std::string const& text_of(GivenOptions const& given, char const* option) {
  return given[option].as<std::string>();
}

/// The value of an option that is one of several words. Errors: UsageError naming option, value and
/// words.
template <class T>
[[nodiscard]] T choice(std::string const& option, std::string const& text,
                       std::vector<std::pair<std::string_view, T>> const& words) try {
  return config::choice(text, words);
} catch (UsageError const& error) {
  throw UsageError{fmt::format("--{}={}: {}", option, text, error.what())};
}

/// A number of type T from `least` to `most`; std::int32_t, std::int64_t, std::uint64_t or double.
/// Errors: UsageError naming option, value and range.
template <class T>
[[nodiscard]] T number(std::string const& option, std::string_view text, T least, T most);

}  // namespace offstage::cli
