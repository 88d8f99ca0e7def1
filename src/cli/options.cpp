#include "cli/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

#include "base/error.hpp"
#include "base/nearest.hpp"
#include "cli/key_table.hpp"
#include "cli/known_model.hpp"

namespace offstage::cli {
namespace {

namespace po = boost::program_options;

constexpr std::string_view blanks = " \t\r\n";

struct Given {
  std::string value;
  std::string origin;
  bool from_file{};

  [[nodiscard]] std::string where() const {
    return from_file ? fmt::format(" ({})", origin) : std::string{};
  }
};

/// By key, one value unless it is repeatable. What one source gives stays together: the first list
/// stored stays, so the highest precedence comes first.
using Values = std::map<std::string, std::vector<Given>>;

struct CommandLine {
  std::vector<std::string> files;
  Values values;
};

po::options_description known_options() {
  po::options_description options;
  options.add_options()("config", po::value<std::string>());
  for (Key const& key : key_table()) {
    options.add_options()(std::string{key.name}.c_str(), po::value<std::string>());
  }
  return options;
}

std::string_view section_of(Key const& key) {
  return key.name.substr(0, key.name.find('.'));
}

UsageError unknown_key(std::string const& word, std::string const& where) {
  std::vector<std::string> names{"config", "help"};
  for (Key const& key : key_table()) {
    names.emplace_back(key.name);
    // Written without its section: --steps.
    if (key.name.substr(section_of(key).size() + 1) == word) {
      names = {std::string{key.name}};
    }
    if (names.size() == 1) {
      break;
    }
  }
  return UsageError{
      fmt::format("unknown key {} ({}); the nearest key is {}", word, where, nearest(word, names))};
}

UsageError hash_in_path(std::string const& key, std::string const& where) {
  return UsageError{
      fmt::format("{}: a path cannot contain '#'{}, which begins a comment; use another path, or "
                  "set off the comment by blanks on both sides",
                  key, where)};
}

/// Boost refuses `--key=`, which clears a default; `--key ""` it takes.
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

CommandLine parse_command_line(std::vector<std::string> const& arguments) {
  // Without allow_guessing: a prefix must not pass as the key.
  using Style = po::command_line_style::style_t;
  constexpr int style = Style::allow_long | Style::long_allow_adjacent | Style::long_allow_next;
  std::vector<po::option> options;
  try {
    options = po::command_line_parser{split_empty_values(arguments)}
                  .options(known_options())
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
      throw UsageError{fmt::format("unexpected argument '{}'; options are --section.key=value",
                                   fmt::join(option.original_tokens, " "))};
    }
    if (option.unregistered) {
      throw unknown_key(option.string_key, "command line");
    }
    std::string const& value = option.value.at(0);
    if (option.string_key == "config") {
      result.files.push_back(value);
      continue;
    }
    Key const& key = *find_key(option.string_key);
    if (key.is_path() && value.find('#') != std::string::npos) {
      throw hash_in_path(option.string_key, fmt::format(" (command line: {})", value));
    }
    std::string origin = fmt::format("--{}={}", option.string_key, value);
    std::vector<Given>& given = result.values[option.string_key];
    if (!key.repeatable) {
      given.clear();  // the last one counts: wrappers append what they were given
    }
    given.push_back({value, std::move(origin), false});
  }
  return result;
}

std::string trimmed(std::string_view text) {
  auto const begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) {
    return {};
  }
  return std::string{text.substr(begin, text.find_last_not_of(blanks) - begin + 1)};
}

/// `a#b`, or `a #b`: a '#' that may well belong to the value, which Boost cuts off. `a # b` is a
/// comment.
bool hash_may_belong_to_value(std::string const& line) {
  auto const hash = line.find('#', line.find('='));
  if (hash == std::string::npos) {
    return false;
  }
  bool const blank_after =
      hash + 1 == line.size() || blanks.find(line[hash + 1]) != std::string_view::npos;
  return !blank_after || blanks.find(line[hash - 1]) == std::string_view::npos;
}

/// Reads one file, line by line through Boost, which knows no line numbers of its own.
class ConfigFile {
 public:
  explicit ConfigFile(std::string path) : path_{std::move(path)} {}

  Values read() {
    std::ifstream file{path_};
    std::error_code ignored;
    if (!file || std::filesystem::is_directory(path_, ignored)) {
      throw UsageError{fmt::format("--config={}: cannot read it; name an existing file", path_)};
    }
    for (std::string line; std::getline(file, line);) {
      ++line_;
      std::string const content = trimmed(line.substr(0, line.find('#')));
      if (content.starts_with('[')) {
        enter_section(content);
      } else if (!content.empty()) {
        take(line);
      }
    }
    if (file.bad()) {
      throw UsageError{fmt::format("--config={}: cannot read all of it", path_)};
    }
    return std::move(values_);
  }

 private:
  [[nodiscard]] std::string where() const { return fmt::format("{}:{}", path_, line_); }

  void enter_section(std::string const& content) {
    std::vector<std::string> headings;
    for (Key const& key : key_table()) {
      headings.push_back(fmt::format("[{}]", section_of(key)));
    }
    if (std::ranges::find(headings, content) == headings.end()) {
      throw UsageError{fmt::format("unknown section {} ({}); the nearest is {}", content, where(),
                                   nearest(content, headings))};
    }
    heading_ = content + '\n';
  }

  void take(std::string const& line) {
    std::istringstream text{heading_ + line};
    std::vector<po::option> options;
    try {
      options = po::parse_config_file(text, known_, /*allow_unregistered=*/true).options;
    } catch (po::error const&) {
      throw UsageError{
          fmt::format("{}: '{}' is neither [section] nor key = value", where(), trimmed(line))};
    }
    for (po::option const& option : options) {
      std::string const& name = option.string_key;
      Key const* const key = find_key(name);
      if (key == nullptr) {
        throw unknown_key(name, where());
      }
      if (key->is_path() && hash_may_belong_to_value(line)) {
        throw hash_in_path(name, fmt::format(" ({})", where()));
      }
      std::vector<Given>& given = values_[name];
      if (!given.empty() && !key->repeatable) {
        throw UsageError{fmt::format("{}={} ({}) stands in {} already; keep one", name,
                                     option.value.at(0), where(), given.front().origin)};
      }
      given.push_back({option.value.at(0), where(), true});
    }
  }

  std::string path_;
  po::options_description known_ = known_options();
  std::int64_t line_{};
  std::string heading_;
  Values values_;
};

std::vector<std::string_view> missing_in(Values const& values) {
  std::vector<std::string_view> missing;
  for (Key const& key : key_table()) {
    if (key.required() && !values.contains(std::string{key.name})) {
      missing.push_back(key.name);
    }
  }
  return missing;
}

void require_all(Values const& values) {
  auto const missing = missing_in(values);
  if (missing.empty()) {
    return;
  }
  bool const one = missing.size() == 1;
  bool const of_model = std::ranges::any_of(
      missing, [](std::string_view name) { return name.starts_with("model."); });
  throw UsageError{fmt::format("{} {} missing; give {} in a config file or as --{}={}{}",
                               fmt::join(missing, ", "), one ? "is" : "are", one ? "it" : "them",
                               missing.front(), find_key(missing.front())->hint,
                               of_model ? "; train.init-from may name a model instead" : "")};
}

void set(Key const& key, Given const& given, train::RunConfig& config) {
  try {
    if (given.value.empty() && !key.may_be_empty()) {
      throw UsageError{fmt::format("the value is empty; give {}", key.hint)};
    }
    key.set(config, given.value);
  } catch (UsageError const& error) {
    throw UsageError{
        fmt::format("{}={}: {}{}", key.name, given.value, error.what(), given.where())};
  }
  config.settings.push_back({std::string{key.name}, given.value, given.origin});
}

void set(Key const& key, std::vector<Given> const& all, train::RunConfig& config) {
  for (Given const& given : all) {
    set(key, given, config);
  }
}

/// Adds the model.* keys that a checkpoint or train.init-from knows. Those given must agree, but for
/// one on which no parameter depends.
void add_known_model(train::RunConfig const& config, Values& values) {
  auto const missing = missing_in(values);
  bool const incomplete = std::ranges::any_of(
      missing, [](std::string_view name) { return name.starts_with("model."); });
  if (config.train.init_from.empty() && !incomplete) {
    return;
  }
  auto const known = find_known_model(config);
  if (!known) {
    return;
  }
  train::RunConfig as_given;
  as_given.model = known->shape;
  for (auto const& [key, value] : state::keys_of(known->shape)) {
    auto const [found, fresh] =
        values.emplace(key, std::vector<Given>{{value, known->origin, false}});
    if (fresh) {
      continue;
    }
    Given const& given = found->second.front();
    set(*find_key(key), given, as_given);
    if (!same_parameters(as_given.model, known->shape)) {
      throw UsageError{fmt::format("{}={}{} is not the {} of {}; leave it out", key, given.value,
                                   given.where(), value, known->origin)};
    }
  }
}

/// The keys that say where a model is to be found.
train::RunConfig configure_places(Values const& values) {
  train::RunConfig config;
  for (char const* name : {"run.dir", "train.init-from", "checkpoint.dir", "checkpoint.resume"}) {
    Key const& key = *find_key(name);
    if (auto const found = values.find(name); found != values.end()) {
      set(key, found->second, config);
    } else if (key.derive != nullptr) {
      set(key, Given{key.derive(config), "default"}, config);
    } else if (key.fallback) {
      set(key, Given{std::string{*key.fallback}, "default"}, config);
    }
  }
  return config;
}

/// Sets every key: first those given and plain defaults, then the defaults that derive from them.
train::RunConfig configure(Values values) {
  add_known_model(configure_places(values), values);
  train::RunConfig config;
  auto const given = [&](Key const& key) { return values.find(std::string{key.name}); };
  for (Key const& key : key_table()) {
    if (auto const found = given(key); found != values.end()) {
      set(key, found->second, config);
    } else if (key.fallback && key.derive == nullptr) {
      set(key, Given{std::string{*key.fallback}, "default"}, config);
    }
  }
  require_all(values);
  for (Key const& key : key_table()) {
    if (key.derive != nullptr && given(key) == values.end()) {
      set(key, Given{key.derive(config), "default"}, config);
    }
  }
  config.subgroup_is_default = !values.contains("update.subgroup-size");
  std::ranges::stable_sort(config.settings, {}, &train::Setting::key);
  return config;
}

/// validate knows keys and values; where those of files stand is added here.
void validate(train::RunConfig const& config, Values const& values) {
  try {
    train::validate(config);
    train::require_trainable(config);
  } catch (UsageError const& error) {
    std::string const message = error.what();
    std::vector<std::string> places;
    for (auto const& [key, all] : values) {
      for (Given const& given : all) {
        if (given.from_file && message.find(key + '=') != std::string::npos) {
          places.push_back(fmt::format("{} in {}", key, given.origin));
        }
      }
    }
    if (places.empty()) {
      throw;
    }
    throw UsageError{fmt::format("{} ({})", message, fmt::join(places, ", "))};
  }
}

std::string describe(Key const& key) {
  if (key.required()) {
    return fmt::format("{} (required)", key.help);
  }
  if (key.fallback->empty()) {
    return std::string{key.help};
  }
  return fmt::format("{} [{}]", key.help, *key.fallback);
}

}  // namespace

train::RunConfig parse_train_options(std::vector<std::string> const& arguments) {
  auto [files, values] = parse_command_line(arguments);
  std::ranges::reverse(files);
  for (std::string const& file : files) {
    values.merge(ConfigFile{file}.read());
  }
  train::RunConfig config = configure(values);
  validate(config, values);
  return config;
}

std::string train_help() {
  std::string text =
      "Usage: offstage train [--config FILE]... [--section.key=value]...\n"
      "\n"
      "Trains a model. The command line wins over config files, a later file over an earlier one.\n"
      "Config files have lines [section], key = value and # comment. tiers.path may be repeated; "
      "the list of\n"
      "one source replaces those of the others.\n";
  std::string_view section;
  for (Key const& key : key_table()) {
    if (section_of(key) != section) {
      text += '\n';
    }
    section = section_of(key);
    text +=
        fmt::format("  {:<38}  {}\n", fmt::format("--{} {}", key.name, key.hint), describe(key));
  }
  return text +
         "\n"
         "Attributes of tiers.path: read=RATE, write=RATE (such as 6.9GB/s; else measured),\n"
         "duplex=half|full, queue-depth=N, request-size=SIZE, processes=N, persistent; to slow it "
         "down:\n"
         "emulate-read=RATE, emulate-write=RATE, emulate-latency=TIME, emulate-duplex=half|full.\n";
}

}  // namespace offstage::cli
