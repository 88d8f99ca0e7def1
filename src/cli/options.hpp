#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/run_config.hpp"

namespace offstage::cli {

/// The command line of `offstage train`: options `--config FILE` (repeatable) and
/// `--section.key=value` (or `--section.key value`). Precedence: command line, later config files,
/// earlier config files, defaults. Config files are Boost.ProgramOptions INI files: `[section]`,
/// `key = value`, `#` comments. A repeatable key (tiers.path) may come several times in one of them; the
/// whole list replaces that of lower precedence, an empty value alone clears it. Of another key the last
/// on the command line counts; twice in one file is an error.
/// Errors: UsageError, one line: unknown key (names file and line, and the nearest known key), a value
///         that does not parse (key, value, what would be right), a required key that is missing, a
///         `#` inside a path, a config file that is not there, values that do not go together
///         (config::validate, state::validate).
[[nodiscard]] config::RunConfig parse_train_options(std::vector<std::string> const& arguments);

/// A file of configs/policies over everything else that was given: what a run would do whose last
/// word it is. One that has plan.choose gives way to all that was given.
struct PolicyRow {
  std::string name;
  std::optional<config::RunConfig> config;
  std::string problem{};  ///< why there is none: what does not go together with the rest
};

/// --max of `offstage plan`: the largest of what is looked for.
enum class Largest { none, model, batch, sequence };

/// A question to `offstage plan`.
struct PlanOptions {
  config::RunConfig config;
  std::vector<PolicyRow> policies;
  int ranks = 1;
  int ranks_per_node = 1;
  Largest largest = Largest::none;
};
/// The command line of `offstage plan`: as that of train, and --ranks N (1) and --ranks-per-node M
/// (all) and --max model|batch|sequence. data.train, run.dir and train.steps may be missing.
/// Errors: as parse_train_options.
[[nodiscard]] PlanOptions parse_plan_options(std::vector<std::string> const& arguments);

/// All keys with defaults and one-line descriptions, for `offstage train --help`.
[[nodiscard]] std::string train_help();

}  // namespace offstage::cli
