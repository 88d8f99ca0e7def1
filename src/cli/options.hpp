#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/run_config.hpp"

namespace offstage::cli {

/// The command line of `offstage train`: options `--config FILE` (repeatable) and
/// `--section.key=value` (or `--section.key value`). Precedence: command line, later config files,
/// earlier config files, defaults. Config files are Boost.ProgramOptions INI files: `[section]`,
/// `key = value`, `#` comments. A repeatable key (tiers.path) may come several times in one source.
/// Its whole list replaces that of lower precedence, and a single empty value clears the list. For
/// another key the last value on the command line counts; twice in one file is an error.
/// Errors: UsageError, one line: an unknown key (names file and line, and the nearest known key), a
///         value that cannot be read (names key, value and what would be right), a missing required
///         key, a `#` inside a path, a missing config file, values that do not fit together
///         (config::validate, state::validate).
[[nodiscard]] config::RunConfig parse_train_options(std::vector<std::string> const& arguments);

/// The plan of a run whose values are overridden by a file of configs/policies. A file with
/// plan.choose gives way to the given values instead.
struct PolicyRow {
  std::string name;
  std::optional<config::RunConfig> config;
  std::string problem{};  ///< why there is no plan: values that do not fit together
  bool is_own = false;    ///< all that the file says is given: the plan is that of the run
};

/// --max of `offstage plan`: the kind of size whose largest value is searched.
enum class Largest { none, model, batch, sequence };

/// A question to `offstage plan`.
struct PlanOptions {
  config::RunConfig config;
  std::vector<PolicyRow> policies;
  int ranks = 1;
  int ranks_per_node = 1;
  Largest largest = Largest::none;
  bool as_json = false;
};
/// The command line of `offstage plan`: that of train, and --ranks N (1), --ranks-per-node M (all),
/// --max model|batch|sequence and --json. data.train, run.dir and train.steps may be missing.
/// Errors: as parse_train_options.
[[nodiscard]] PlanOptions parse_plan_options(std::vector<std::string> const& arguments);

/// All keys with defaults and one-line descriptions, for `offstage train --help`.
[[nodiscard]] std::string train_help();
/// The same lines of the keys whose names have `part` in them; without one, of the keys in whose
/// place another tool has such a word; else what there is in place of the word. Empty: nothing is.
[[nodiscard]] std::string keys_help(std::string part);

}  // namespace offstage::cli
