#pragma once

#include <boost/program_options.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/commands.hpp"

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

template <class T>
using Choices = std::vector<std::pair<std::string, T>>;

/// Throws for a value that is none of the choices.
/// Errors: UsageError naming option, value and choices.
[[noreturn]] void throw_no_choice(std::string const& option, std::string const& text,
                                  std::vector<std::string> const& names);

/// The value of an option that is one of several words. Errors: as throw_no_choice.
template <class T>
[[nodiscard]] T choice(GivenOptions const& given, std::string const& option,
                       Choices<T> const& choices) {
  auto const& text = given[option].as<std::string>();
  std::vector<std::string> names;
  for (auto const& [name, value] : choices) {
    if (text == name) {
      return value;
    }
    names.push_back(name);
  }
  throw_no_choice(option, text, names);
}

/// A number of type T from `least` to `most`; std::int32_t, std::int64_t, std::uint64_t or double.
/// Errors: UsageError naming option, value and range.
template <class T>
[[nodiscard]] T number(std::string const& option, std::string_view text, T least, T most);

}  // namespace offstage::cli
