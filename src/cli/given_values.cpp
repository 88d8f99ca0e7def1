#include "cli/given_values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/error.hpp"
#include "base/nearest.hpp"
#include "base/printable.hpp"
#include "base/quoted.hpp"
#include "base/text.hpp"
#include "config/key_table.hpp"
#include "config/other_names.hpp"

namespace offstage::cli {
namespace {

namespace po = boost::program_options;

po::options_description known_options(std::vector<std::string> const& extra = {}) {
  po::options_description options;
  options.add_options()("config", po::value<std::string>());
  for (std::string const& name : extra) {
    options.add_options()(name.c_str(), po::value<std::string>());
  }
  for (config::Key const& key : config::key_table()) {
    options.add_options()(std::string{key.name}.c_str(), po::value<std::string>());
  }
  return options;
}

/// The part of a key's name, or of a word, behind its section.
std::string_view bare(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

/// The keys of this bare name in all sections: "run.dir or checkpoint.dir"; empty: there is none.
std::string keys_called(std::string_view name) {
  std::vector<std::string_view> found;
  for (config::Key const& key : config::key_table()) {
    if (bare(key.name) == name) {
      found.push_back(key.name);
    }
  }
  return fmt::to_string(fmt::join(found, " or "));
}

/// The keys whose bare names begin with that of `word`, three letters at least and three keys at
/// most; empty: there are none, or more.
std::string keys_begun_by(std::string_view word) {
  constexpr std::size_t least = 3;
  constexpr std::size_t most = 3;
  std::vector<std::string_view> found;
  for (config::Key const& key : config::key_table()) {
    if (bare(key.name).starts_with(bare(word))) {
      found.push_back(key.name);
    }
  }
  bool const is_told = bare(word).size() >= least && found.size() <= most;
  return is_told ? fmt::to_string(fmt::join(found, " or ")) : std::string{};
}

/// The name that is so near to the unknown `word` that it may be meant. A word without a section
/// may mean a key's bare name, too. Empty: there is none.
std::string near_name(std::string_view word, std::vector<std::string> const& extra) {
  std::vector<std::string> names{"config", "help"};
  names.insert(names.end(), extra.begin(), extra.end());
  std::vector<std::string> bare_names;
  for (config::Key const& key : config::key_table()) {
    names.emplace_back(key.name);
    bare_names.emplace_back(bare(key.name));
  }
  std::size_t const most = std::max<std::size_t>(1, bare(word).size() / 4);
  auto const found = nearest_within(word, names, most);
  return found.empty() && bare(word) == word ? keys_called(nearest_within(word, bare_names, most))
                                             : found;
}

/// The key that does what another tool calls `word`, or what there is in its place. Empty: the word
/// is not known.
std::string advice_in_place_of(std::string const& word) {
  auto const [key, sentence] = config::in_place_of(word);
  return key.empty() ? std::string{sentence}
                     : fmt::format("use {}: {}", key, config::find_key(key)->help);
}

/// The advice for the unknown `word`: the key of that name, in some section; the key that
/// does what other tools call so, or what there is in its place; or a name that is near. `_` is
/// `-`.
std::string advice_on_key(std::string word, std::vector<std::string> const& extra) {
  std::ranges::replace(word, '_', '-');
  auto name = config::find_key(word) != nullptr ? word : std::string{};
  if (name.empty()) {
    if (auto advice = advice_in_place_of(word); !advice.empty()) {
      return advice;
    }
    name = keys_called(word);
  }
  if (name.empty()) {
    name = keys_called(bare(word));
  }
  if (name.empty()) {
    name = near_name(word, extra);
  }
  if (name.empty()) {
    name = keys_begun_by(word);
  }
  return name.empty() ? "offstage train --help lists all keys"
                      : fmt::format("the nearest key is {}", name);
}

/// The advice for the unknown section `name`: what there is in its place, or a section that is
/// near.
std::string advice_on_section(std::string const& name) {
  if (auto advice = advice_in_place_of(name); !advice.empty()) {
    return advice;
  }
  std::vector<std::string> sections;
  for (config::Key const& key_of_section : config::key_table()) {
    std::string section{section_of(key_of_section)};
    if (sections.empty() || sections.back() != section) {
      sections.push_back(std::move(section));
    }
  }
  auto const begun = std::ranges::find_if(
      sections, [&](std::string const& section) { return name.starts_with(section); });
  auto const found = begun != sections.end() ? *begun : near_word(name, sections);
  return found.empty() || name.empty()
             ? fmt::format("the sections are {}", fmt::join(sections, ", "))
             : fmt::format("the nearest is [{}]", found);
}

UsageError unknown_key(std::string const& word, std::string const& where,
                       std::vector<std::string> const& extra = {}) {
  return UsageError{
      fmt::format("unknown key {} ({}); {}", word, where, advice_on_key(word, extra))};
}

UsageError hash_in_path(std::string const& key, std::string const& where) {
  return UsageError{
      fmt::format("{}: a path cannot contain '#'{}, which begins a comment; use another path, or "
                  "set off the comment by blanks on both sides",
                  key, where)};
}

UsageError control_in_path(std::string const& key, std::string const& where) {
  return UsageError{fmt::format(
      "{}: a path cannot contain control characters, such as a line break{}; use another path", key,
      where)};
}

/// Splits `--key=` into `--key ""`. Boost refuses the first form, which clears a default, and takes
/// the second.
std::vector<std::string> split_empty_values(std::vector<std::string> const& arguments) {
  std::vector<std::string> result;
  for (std::string const& argument : arguments) {
    auto const equals = argument.find('=');
    if (argument.starts_with("--") && equals + 1 == argument.size()) {
      result.push_back(argument.substr(0, equals));
      result.emplace_back();
    } else {
      result.push_back(argument);
    }
  }
  return result;
}

/// Returns whether there is a '#' that may belong to the value, which Boost would cut off: `a#b`,
/// or `a #b`. `a # b` is a comment.
bool hash_may_belong_to_value(std::string const& line) {
  auto const hash = line.find('#', line.find('='));
  if (hash == std::string::npos) {
    return false;
  }
  bool const blank_after =
      hash + 1 == line.size() || blanks.find(line[hash + 1]) != std::string_view::npos;
  return !blank_after || blanks.find(line[hash - 1]) == std::string_view::npos;
}

/// Begin of a comment that a blank and `;` set off; npos: there is none.
std::size_t semicolon_comment(std::string_view text) {
  for (auto at = text.find(';'); at != std::string_view::npos; at = text.find(';', at + 1)) {
    if (at > 0 && blanks.find(text[at - 1]) != std::string_view::npos) {
      return at;
    }
  }
  return std::string_view::npos;
}

/// The plain value of a line in a file: without blanks around it, without a comment behind ` ;`,
/// and without quotes around all of it.
/// Errors: UsageError without the key: quotes that begin and do not end.
std::string plain_value(std::string_view text) {
  std::string const whole{trimmed(text)};
  bool const is_quoted = whole.starts_with('"') || whole.starts_with('\'');
  if (!is_quoted) {
    return std::string{trimmed(text.substr(0, semicolon_comment(text)))};
  }
  auto const end = whole.find(whole.front(), 1);
  auto const behind = end == std::string::npos ? "" : whole.substr(end + 1);
  if (end == std::string::npos ||
      (!behind.empty() && semicolon_comment(behind) == std::string::npos) ||
      !trimmed(std::string_view{behind}.substr(0, semicolon_comment(behind))).empty()) {
    throw UsageError{fmt::format(
        "{} begins with a quotation mark, but does not end with it; put both or none", whole)};
  }
  return whole.substr(1, end - 1);
}

/// True if a line has one where a blank may stand: not inside of the value.
bool has_no_break_space(std::string_view line) {
  constexpr std::string_view space = "\u00a0";
  auto const equals = line.find('=');
  auto const value =
      equals == std::string_view::npos ? std::string_view{} : trimmed(line.substr(equals + 1));
  return line.substr(0, equals).find(space) != std::string_view::npos || value.starts_with(space) ||
         value.ends_with(space);
}

/// True if a file or directory of this directory has a name that begins so.
bool has_name_like(std::string_view directory, std::string_view begin) {
  namespace fs = std::filesystem;
  std::error_code failed;
  for (fs::directory_iterator it{directory.empty() ? "." : directory, failed};
       !failed && it != fs::directory_iterator{}; it.increment(failed)) {
    if (it->path().filename().string().starts_with(begin)) {
      return true;
    }
  }
  return false;
}

/// True for $NAME and ${NAME} in a path where nothing is called so.
bool names_variable(std::string_view path) {
  for (std::size_t at = 1; at < path.size(); ++at) {
    unsigned char const next = static_cast<unsigned char>(path[at]);
    if (path[at - 1] == '$' && (std::isalpha(next) != 0 || next == '_' || next == '{')) {
      auto const name = path.substr(0, at).rfind('/') + 1;  // 0 if there is none
      return !has_name_like(path.substr(0, name), path.substr(name, at + 1 - name));
    }
  }
  return false;
}

/// Expands `~` and `~/x` as shells do, also in each path of a list, where blanks may come first.
/// Errors: UsageError: ~user; HOME is not set; a variable of the shell, which nobody expands here.
std::string expand_home(std::string const& key, std::string const& value) {
  std::string result;
  std::string_view rest = value;
  for (bool more = true; more;) {
    auto const comma = rest.find(',');
    more = comma != std::string_view::npos;
    auto part = rest.substr(0, comma);
    auto const blank = std::min(part.find_first_not_of(blanks), part.size());
    result += part.substr(0, blank);
    part.remove_prefix(blank);
    bool const is_home = part == "~" || part.starts_with("~/");
    char const* const home = is_home ? std::getenv("HOME") : nullptr;
    if (part.starts_with('~') && home == nullptr) {
      throw UsageError{fmt::format("{}={}: {}; write the whole path", key, value,
                                   is_home ? "HOME is not set" : "only ~/ is known, not ~user")};
    }
    if (names_variable(part)) {
      throw UsageError{
          fmt::format("{}={}: variables are not expanded here; write the path, or give --{}=PATH "
                      "on the command "
                      "line, where the shell expands them",
                      key, value, key)};
    }
    result += is_home ? home : "";
    result += is_home ? part.substr(1) : part;
    result += more ? "," : "";
    rest.remove_prefix(more ? comma + 1 : rest.size());
  }
  return result;
}

/// True if the path is at fault, and not the file system.
bool is_of_path(int error_number) {
  return error_number == ENOENT || error_number == ENOTDIR || error_number == EACCES ||
         error_number == ELOOP || error_number == ENAMETOOLONG;
}

/// Reads one file's text, line by line through Boost, which knows no line numbers of its own.
class ConfigFile {
 public:
  explicit ConfigFile(std::string path) : path_{std::move(path)} {}

  Values read(std::istream& file) {
    for (std::string line; std::getline(file, line);) {
      if (++line_ == 1 && line.starts_with(byte_order_mark)) {
        line.erase(0, byte_order_mark.size());
      }
      std::string const content{trimmed(line.substr(0, line.find('#')))};
      if (content.starts_with('[')) {
        enter_section(std::string{trimmed(content.substr(0, semicolon_comment(content)))});
      } else if (!content.empty() && !content.starts_with(';')) {
        take(line);
      }
    }
    if (file.bad()) {
      throw IoError{"--config: cannot read all of", path_, errno};
    }
    return std::move(values_);
  }

 private:
  [[nodiscard]] std::string where() const { return fmt::format("{}:{}", path_, line_); }

  void enter_section(std::string const& content) {
    auto const is_of = [&](config::Key const& key) {
      return fmt::format("[{}]", section_of(key)) == content;
    };
    if (std::ranges::none_of(config::key_table(), is_of)) {
      auto const name = content.substr(1, content.find(']') - 1);
      throw UsageError{
          fmt::format("unknown section {} ({}); {}", content, where(), advice_on_section(name))};
    }
    heading_ = content + '\n';
  }

  /// The line's value. Boost would leave its quotes.
  [[nodiscard]] std::string value_of(std::string const& key, std::string const& line) const {
    auto const content = line.substr(0, line.find('#'));
    try {
      auto const value = plain_value(content.substr(content.find('=') + 1));
      return config::find_key(key)->is_path() ? expand_home(key, value) : value;
    } catch (UsageError const& error) {
      throw UsageError{fmt::format("{}: {}: {}", where(), key, error.what())};
    }
  }

  void take(std::string const& line) {
    if (has_no_break_space(line.substr(0, line.find('#')))) {
      throw UsageError{
          where() +
          ": has a no-break space (U+00A0), as text from a web page may have it, which "
          "looks like a blank; write a blank"};
    }
    if (trimmed(line).starts_with('{')) {
      throw UsageError{where() +
                       ": a configuration is no JSON, but lines of key = value; "
                       "configs/COMING_FROM.md has the keys that stand for those of DeepSpeed"};
    }
    std::istringstream text{heading_ + line};
    std::vector<po::option> options;
    try {
      options = po::parse_config_file(text, known_, /*allow_unregistered=*/true).options;
    } catch (po::error const&) {
      constexpr std::size_t longest = 80;
      throw UsageError{fmt::format("{}: '{}' is neither [section] nor key = value", where(),
                                   printable(trimmed(line), longest))};
    }
    for (po::option const& option : options) {
      std::string const& name = option.string_key;
      config::Key const* const key = config::find_key(name);
      if (key == nullptr) {
        throw unknown_key(name, where());
      }
      if (key->is_path() && hash_may_belong_to_value(line)) {
        throw hash_in_path(name, fmt::format(" ({})", where()));
      }
      std::vector<Given>& given = values_[name];
      if (!given.empty() && !key->repeatable) {
        throw UsageError{fmt::format("{}={} ({}) is in {} already; keep one", name,
                                     option.value.at(0), where(), given.front().origin)};
      }
      auto const value = value_of(name, line);
      if (key->is_path() && !fits_a_line(value)) {
        throw control_in_path(name, fmt::format(" ({})", where()));
      }
      given.push_back({value, where(), true});
    }
  }

  std::string path_;
  po::options_description known_ = known_options();
  std::int64_t line_{};
  std::string heading_;
  Values values_;
};

}  // namespace

CommandLine parse_command_line(std::vector<std::string> const& arguments,
                               std::vector<std::string> const& extra) {
  // Without allow_guessing: a prefix must not pass as the key.
  using Style = po::command_line_style::style_t;
  constexpr int style = Style::allow_long | Style::long_allow_adjacent | Style::long_allow_next;
  std::vector<po::option> options;
  try {
    options = po::command_line_parser{split_empty_values(arguments)}
                  .options(known_options(extra))
                  .style(style)
                  .allow_unregistered()
                  .run()
                  .options;
  } catch (po::error const& error) {
    throw UsageError{error.what()};
  }
  CommandLine result;
  for (po::option const& option : options) {
    if (option.position_key >= 0 || option.string_key.empty()) {
      throw UsageError{
          fmt::format("unexpected argument '{}'; options are --section.key=value and --config FILE",
                      fmt::join(option.original_tokens, " "))};
    }
    if (option.unregistered) {
      throw unknown_key(option.string_key, "command line", extra);
    }
    std::string value = option.value.at(0);
    if (option.string_key == "config") {
      result.files.push_back(expand_home("--config", value));
      continue;
    }
    if (std::ranges::find(extra, option.string_key) != extra.end()) {
      result.extra[option.string_key] = value;
      continue;
    }
    config::Key const& key = *config::find_key(option.string_key);
    if (key.is_path() && value.find('#') != std::string::npos) {
      throw hash_in_path(option.string_key, fmt::format(" (command line: {})", value));
    }
    if (key.is_path() && !fits_a_line(value)) {
      throw control_in_path(option.string_key, fmt::format(" (command line: {})", value));
    }
    std::string origin = fmt::format("--{}={}", option.string_key, value);
    if (key.is_path()) {
      value = expand_home(option.string_key, value);
    }
    std::vector<Given>& given = result.values[option.string_key];
    if (!key.repeatable) {
      // The last one counts, because wrappers append the options that they were given.
      given.clear();
    }
    given.push_back({value, std::move(origin), false});
  }
  return result;
}

Values read_config_file(std::string const& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw UsageError{fmt::format("--config={}: it is a directory; name a file", path)};
  }
  std::ifstream file{path};
  if (!file) {
    int const reason = errno;
    if (!is_of_path(reason)) {
      throw IoError{"--config: cannot open", path, reason};
    }
    throw UsageError{fmt::format("--config={}: cannot read it: {}; name a file that you may read",
                                 path, std::generic_category().message(reason))};
  }
  return ConfigFile{path}.read(file);
}

Values read_config_text(std::string_view text, std::string const& name) {
  std::istringstream stream{std::string{text}};
  return ConfigFile{name}.read(stream);
}

}  // namespace offstage::cli
