#include "cli/command_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <type_traits>

#include "base/nearest.hpp"
#include "base/text.hpp"

namespace offstage::cli {
namespace {

namespace po = boost::program_options;

std::string unknown(std::string const& word, po::options_description const& known,
                    std::string const& words) {
  std::vector<std::string> names;
  for (auto const& option : known.options()) {
    if (option->long_name() != words) {
      names.push_back("--" + option->long_name());
    }
  }
  auto const name = word.substr(0, word.find('='));
  auto const near = near_word(name, names);
  return fmt::format("unknown option {}{}{}", name, near.empty() ? "" : "; the nearest is ", near);
}

}  // namespace

GivenOptions parse_command_options(Arguments const& arguments, po::options_description const& known,
                                   std::string const& command, std::string const& words) {
  // Without allow_guessing: a prefix must not pass as the option.
  constexpr int style =
      po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
  po::positional_options_description positional;
  po::command_line_parser parser{arguments};
  parser.options(known).style(style);
  if (!words.empty()) {
    parser.positional(positional.add(words.c_str(), -1));
  }
  GivenOptions given;
  std::string problem;
  try {
    auto const parsed = parser.run();
    auto const stray = std::ranges::find_if(
        parsed.options, [](po::option const& option) { return option.string_key.empty(); });
    if (stray == parsed.options.end()) {
      po::store(parsed, given);
      po::notify(given);
      return given;
    }
    problem = fmt::format("unexpected argument '{}'", fmt::join(stray->original_tokens, " "));
  } catch (po::unknown_option const& error) {
    problem = unknown(error.get_option_name(), known, words);
  } catch (po::required_option const& error) {
    problem = fmt::format("{} is missing", error.get_option_name());
  } catch (po::multiple_occurrences const& error) {
    problem = fmt::format("{} is given twice", error.get_option_name());
  } catch (po::invalid_command_line_syntax const& error) {
    problem = fmt::format("{0} needs a value; {0}=VALUE takes one that begins with -, too",
                          error.get_option_name());
  } catch (po::error const& error) {
    problem = error.what();
  }
  throw UsageError{fmt::format("{}; see offstage {} --help", problem, command)};
}

template <class T>
T number(std::string const& option, std::string_view text, T least, T most) {
  auto const value = number_in<T>(text);
  // A NaN is in no range.
  if (!value || !(*value >= least && *value <= most)) {
    throw UsageError{fmt::format("--{}: '{}' is no {} from {} to {}", option, text,
                                 std::is_integral_v<T> ? "whole number" : "number", least, most)};
  }
  return *value;
}

template std::int32_t number(std::string const&, std::string_view, std::int32_t, std::int32_t);
template std::int64_t number(std::string const&, std::string_view, std::int64_t, std::int64_t);
template std::uint64_t number(std::string const&, std::string_view, std::uint64_t, std::uint64_t);
template double number(std::string const&, std::string_view, double, double);

}  // namespace offstage::cli
