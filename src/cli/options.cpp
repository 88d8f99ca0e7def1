#include "cli/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "cli/command_options.hpp"
#include "cli/given_values.hpp"
#include "cli/known_model.hpp"
#include "cli/policy_files.hpp"
#include "config/key_table.hpp"
#include "config/key_values.hpp"
#include "config/other_names.hpp"
#include "train/report/header.hpp"

namespace offstage::cli {
namespace {

/// More ranks than any machine has. Sums over them do not overflow.
constexpr std::int32_t most_ranks = 100'000;

std::vector<std::string_view> missing_in(Values const& values) {
  std::vector<std::string_view> missing;
  for (config::Key const& key : config::key_table()) {
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
                               missing.front(), config::find_key(missing.front())->hint,
                               of_model ? "; train.init-from may name a model instead" : "")};
}

void set(config::Key const& key, Given const& given, config::RunConfig& config,
         bool derived = false) {
  auto const value = config::word_of_truth(key.hint, given.value);
  try {
    if (value.empty() && !key.may_be_empty()) {
      throw UsageError{fmt::format("the value is empty; give {}", key.hint)};
    }
    key.set(config, value);
  } catch (UsageError const& error) {
    throw UsageError{
        fmt::format("{}={}: {}{}", key.name, given.value, error.what(), given.where())};
  }
  bool const as_default = given.origin != "default" && value == key.fallback;
  config.settings.push_back({std::string{key.name}, value,
                             given.origin + (as_default ? config::as_default_mark : ""), derived});
}

void set(config::Key const& key, std::vector<Given> const& all, config::RunConfig& config) {
  for (Given const& given : all) {
    set(key, given, config);
  }
}

/// Adds the model.* keys that a checkpoint or train.init-from knows. Keys that were given must
/// agree, unless no parameter depends on them; a vocabulary may grow when a run begins.
void add_known_model(config::RunConfig const& config, Values& values) {
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
  config::RunConfig as_given;
  as_given.model = known->shape;
  for (auto const& [key, value] : state::keys_of(known->shape)) {
    auto const [found, fresh] =
        values.emplace(key, std::vector<Given>{{value, known->origin, false}});
    if (fresh) {
      continue;
    }
    Given const& given = found->second.front();
    set(*config::find_key(key), given, as_given);
    if (known->begins && as_given.model.vocab > known->shape.vocab) {
      as_given.model.vocab = known->shape.vocab;  // it grows
    }
    if (!same_parameters(as_given.model, known->shape)) {
      bool const begins = !config.train.init_from.empty();
      throw UsageError{fmt::format(
          "{}={}{} is not the {} of {}; leave it out{}", key, given.value, given.where(), value,
          known->origin,
          begins && key.starts_with("model.rope")
              ? ", or name a copy of that directory whose config.json has it"
          : known->begins && key == "model.vocab" ? ", or name more: tokens can be added"
                                                  : "")};
    }
  }
}

/// Reads the keys that name the places of a model.
config::RunConfig configure_places(Values const& values) {
  config::RunConfig config;
  for (char const* name : {"run.dir", "train.init-from", "checkpoint.dir", "checkpoint.resume"}) {
    config::Key const& key = *config::find_key(name);
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

/// Sets every key: given values and plain defaults first, then the defaults that derive from them.
config::RunConfig configure(Values values) {
  add_known_model(configure_places(values), values);
  config::RunConfig config;
  auto const given = [&](config::Key const& key) { return values.find(std::string{key.name}); };
  for (config::Key const& key : config::key_table()) {
    if (auto const found = given(key); found != values.end()) {
      set(key, found->second, config);
    } else if (key.fallback && key.derive == nullptr) {
      set(key, Given{std::string{*key.fallback}, "default"}, config);
    }
  }
  require_all(values);
  for (config::Key const& key : config::key_table()) {
    if (key.derive != nullptr && given(key) == values.end()) {
      set(key, Given{key.derive(config), "default"}, config, /*derived=*/true);
    }
  }
  config.subgroup_is_default = !values.contains("update.subgroup-size");
  config.subgroup_is_open = config.subgroup_is_default;
  std::ranges::stable_sort(config.settings, {}, &config::Setting::key);
  return config;
}

/// Validates keys and values as config::validate does, and adds the places in files to its error.
void validate(config::RunConfig const& config, Values const& values) {
  try {
    config::validate(config);
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

/// All values. The command line wins over files, and later files over earlier ones.
Values all_values(CommandLine line) {
  std::ranges::reverse(line.files);
  for (std::string const& file : line.files) {
    line.values.merge(read_config_file(file));
  }
  return std::move(line.values);
}

std::string describe(config::Key const& key) {
  if (key.required()) {
    return fmt::format("{} (required)", key.help);
  }
  if (key.fallback->empty()) {
    return std::string{key.help};
  }
  return fmt::format("{} [{}]", key.help, *key.fallback);
}

std::string line_of(config::Key const& key) {
  return fmt::format("  {:<38}  {}\n", fmt::format("--{} {}", key.name, key.hint), describe(key));
}

config::RunConfig checked(Values const& values) {
  config::RunConfig config = configure(values);
  validate(config, values);
  return config;
}

/// Takes away what stands for a plan's choice, so that values are those of a policy without one.
void leave_plan(Values& values) {
  values.erase("plan.choose");
  for (char const* const key :
       {"parameters.home", "parameters.sharding", "update.device-resident"}) {
    if (auto const found = values.find(key);
        found != values.end() && found->second.back().value == "auto") {
      values.erase(found);
    }
  }
}

PolicyRow policy_row(PolicyFile const& file, Values given) {
  PolicyRow row{.name = std::string{file.name}, .config = std::nullopt};
  try {
    Values values = read_config_text(file.text, fmt::format("{}.cfg", file.name));
    if (values.contains("plan.choose")) {  // given values stay, and the rest is planned around them
      values.swap(given);
      row.is_own =
          std::ranges::all_of(given, [&](auto const& each) { return values.contains(each.first); });
    } else {
      leave_plan(given);
    }
    values.insert(given.begin(), given.end());
    row.config = checked(values);
  } catch (UsageError const& error) {
    row.problem = error.what();
  }
  return row;
}

Largest largest_of(std::string const& text) {
  return choice<Largest>(
      "max", text,
      {{"model", Largest::model}, {"batch", Largest::batch}, {"sequence", Largest::sequence}});
}

}  // namespace

config::RunConfig parse_train_options(std::vector<std::string> const& arguments) {
  return checked(all_values(parse_command_line(arguments)));
}

PlanOptions parse_plan_options(std::vector<std::string> const& arguments) {
  auto words = arguments;
  bool const as_json = std::erase(words, "--json") > 0;
  auto const line = parse_command_line(words, {"ranks", "ranks-per-node", "max"});
  auto values = all_values(line);
  // A plan needs none of these keys. A warm-up leaves some of so many steps. Keys of validation may
  // be given without its data.
  for (auto const& [key, value] : {std::pair{"run.dir", "plan"},
                                   {"data.train", "plan"},
                                   {"data.valid", "plan"},
                                   {"train.steps", "1000000000000"}}) {
    values.try_emplace(key, std::vector<Given>{{value, "default", false}});
  }
  PlanOptions options;
  options.config = checked(values);
  for (PolicyFile const& file : policy_files()) {
    options.policies.push_back(policy_row(file, values));
  }
  auto const count = [&](std::string const& name, int fallback) {
    auto const found = line.extra.find(name);
    return found == line.extra.end() ? fallback : number(name, found->second, 1, most_ranks);
  };
  options.ranks = count("ranks", 1);
  options.ranks_per_node = std::min(options.ranks, count("ranks-per-node", options.ranks));
  if (auto const found = line.extra.find("max"); found != line.extra.end()) {
    options.largest = largest_of(found->second);
  }
  options.as_json = as_json;
  if (as_json && options.largest != Largest::none) {
    throw UsageError{"--max has no answer in JSON; leave out --json, or --max"};
  }
  return options;
}

std::string train_help() {
  std::string text =
      "Usage: offstage train [--config FILE]... [--section.key=value]...\n"
      "\n"
      "Trains a model. The same command goes on from the run's newest checkpoint.\n"
      "The command line wins over config files, a later file over an earlier one.\n"
      "Config files have lines [section], key = value and # or ; comment. Sizes are written 4GiB,\n"
      "rates 5GB/s, times 30min or 1-00:00:00, counts 20k. tiers.path may be given several times;\n"
      "the list of a later file, or of the command line, replaces earlier lists.\n";
  std::string_view section;
  for (config::Key const& key : config::key_table()) {
    if (section_of(key) != section) {
      text += '\n';
    }
    section = section_of(key);
    text += line_of(key);
  }
  return text +
         "\n"
         "Attributes of tiers.path: read=RATE, write=RATE (such as 6.9GB/s; else measured),\n"
         "duplex=half|full, queue-depth=N, request-size=SIZE, processes=N, threads=N, persistent,\n"
         "endurance=SIZE (what its drives are rated to take);\n"
         "to slow it down: emulate-read=RATE, emulate-write=RATE, emulate-latency=TIME,\n"
         "emulate-duplex=half|full, emulate-stream=RATE, emulate-sharing=X.\n";
}

std::string keys_help(std::string part) {
  std::ranges::replace(part, '_', '-');
  auto const lines_of = [](auto const& is_meant) {
    std::string text;
    for (config::Key const& key : config::key_table()) {
      text += is_meant(key) ? line_of(key) : std::string{};
    }
    return text;
  };
  auto text = lines_of(
      [&](config::Key const& key) { return key.name.find(part) != std::string_view::npos; });
  if (text.empty()) {
    text = lines_of([&](config::Key const& key) {
      return std::ranges::any_of(config::other_names(), [&](auto const& other) {
        return other.first.find(part) != std::string_view::npos && other.second == key.name;
      });
    });
  }
  if (auto const sentence = config::in_place_of(part).sentence; text.empty() && !sentence.empty()) {
    text = fmt::format("There is no key {}: {}.\n", part, sentence);
  }
  return text;
}

}  // namespace offstage::cli
