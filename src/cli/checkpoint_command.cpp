#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/path.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "base/team.hpp"
#include "base/units.hpp"
#include "checkpoint/directory.hpp"
#include "checkpoint/listing.hpp"
#include "cli/commands.hpp"
#include "cli/run_directory.hpp"
#include "convert/convert.hpp"
#include "state/model_shape.hpp"
#include "train/report/json_line.hpp"

namespace offstage::cli {
namespace {

using checkpoint::Completeness;

constexpr char const* checkpoint_usage =
    R"(Usage: offstage checkpoint ls [--json] PATH
       offstage checkpoint verify PATH
       offstage checkpoint diff A B

PATH, A and B are a run's directory, a directory of checkpoints, or one checkpoint (step-..., or
RUN/best, that of the run's best validation).
A run's directory includes levels 1 and 3 (checkpoint.local, checkpoint.partner) as far as they
are on this node.
ls lists checkpoints; with --json each is a line of JSON. verify reads them whole and compares
all checksums. diff compares the states of two checkpoints; of a directory it takes the newest
complete one.
verify ends with 65 if a checkpoint is damaged or none is complete, and with 74 if one cannot be
read. A save that did not finish is no damage, and neither is a checkpoint that a run removes
meanwhile.
diff ends with 1 if a bit of the state differs.)";

using ListRow = std::array<std::string, 8>;

/// Columns as wide as their widest cell.
std::string aligned(std::vector<ListRow> const& rows) {
  std::array<std::size_t, std::tuple_size_v<ListRow>> widths{};
  for (ListRow const& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (ListRow const& row : rows) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      text += fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    text += row.back() + '\n';
  }
  text.pop_back();
  return text;
}

/// The step with the best validation, as the newest complete checkpoint that knows of one tells it;
/// empty: none does.
std::string best_step(std::vector<checkpoint::Listed> const& entries) {
  for (checkpoint::Listed const& entry : entries | std::views::reverse) {
    auto step = entry.state == Completeness::complete
                    ? checkpoint::recorded(entry.meta, "best-validation.step")
                    : std::string{};
    if (!step.empty()) {
      return step;
    }
  }
  return {};
}

bool has_meta(checkpoint::Listed const& entry) {
  return entry.state == Completeness::complete || entry.state == Completeness::partial;
}

std::optional<std::int64_t> step_of(checkpoint::Listed const& entry) {
  return has_meta(entry) ? std::optional{entry.meta.step}
                         : checkpoint::step_of(without_slash(entry.path).filename().string());
}

std::string state_of(checkpoint::Listed const& entry) {
  switch (entry.state) {
    case Completeness::complete:
      return "complete";
    case Completeness::partial:
      return entry.level == 3 ? "another node's part" : "this node's part";
    case Completeness::unfinished:
      return "unfinished";
    case Completeness::newer:
      return "of a newer offstage";
    case Completeness::refused:
      return "cannot be read";
    case Completeness::incomplete:
    case Completeness::unreadable:
      break;
  }
  return "damaged";
}

/// The problem, with the checkpoint's path; empty: there is none, but perhaps an unfinished save.
std::string problem_of(checkpoint::Listed const& entry) {
  if (has_meta(entry) || entry.state == Completeness::unfinished) {
    return {};
  }
  return entry.problem.starts_with(entry.path) ? entry.problem
                                               : fmt::format("{}: {}", entry.path, entry.problem);
}

ListRow row_of(checkpoint::Listed const& entry, bool is_best) {
  auto const step = step_of(entry);
  ListRow row{step ? std::to_string(*step) : "-",
              state_of(entry) + (is_best ? ", best" : ""),
              std::to_string(entry.level),
              format_bytes(entry.bytes),
              "-",
              "-",
              "-",
              printable(entry.path)};
  if (has_meta(entry)) {
    row[4] = std::to_string(entry.meta.ranks);
    row[5] = std::to_string(state::count_parameters(state::layers_of(entry.meta.model)));
    row[6] = fmt::format("{} {}", printable_name(entry.meta.state.optimizer),
                         printable_name(entry.meta.state.moments));
  }
  return row;
}

nlohmann::ordered_json record_of(checkpoint::Listed const& entry, bool is_best) {
  auto const step = step_of(entry);
  nlohmann::ordered_json record{
      {"step", step ? nlohmann::ordered_json(*step) : nlohmann::ordered_json(nullptr)},
      {"state", name_of(entry.state)},
      {"best", is_best},
      {"level", entry.level},
      {"bytes", entry.bytes},
      {"path", entry.path}};
  if (has_meta(entry)) {
    record["ranks"] = entry.meta.ranks;
    record["parameters"] = state::count_parameters(state::layers_of(entry.meta.model));
    record["optimizer"] = entry.meta.state.optimizer;
    record["moments"] = entry.meta.state.moments;
  } else {
    record["problem"] = entry.problem;
  }
  return record;
}

ExitCode ls(std::string const& path, bool as_json) {
  if (as_json && is_directory(path) && !checkpoint::holds_any(path)) {
    return ExitCode::done;  // a program that watches a run asks before its first save, too
  }
  auto entries = checkpoint::list(path);
  // A run removes old ones meanwhile.
  std::erase_if(entries, [](auto const& each) { return !has_meta(each) && was_removed(each); });
  auto const best = best_step(entries);
  std::vector<ListRow> rows{
      {"STEP", "STATE", "LEVEL", "SIZE", "RANKS", "PARAMETERS", "OPTIMIZER", "PATH"}};
  std::string lines;
  for (checkpoint::Listed const& entry : entries) {
    bool const is_best =
        entry.state == Completeness::complete && std::to_string(entry.meta.step) == best;
    rows.push_back(row_of(entry, is_best));
    lines += (lines.empty() ? "" : "\n") + train::json_line(record_of(entry, is_best));
  }
  if (as_json) {
    log::write_lines(lines);
    return ExitCode::done;
  }
  log::write_lines(aligned(rows));
  for (checkpoint::Listed const& entry : entries) {
    if (auto const problem = problem_of(entry); !problem.empty()) {
      log::write_info(printable(problem));
    }
  }
  return ExitCode::done;
}

struct Problems {
  std::vector<std::string> problems;
  bool refused = false;  ///< what there is cannot be read
};

/// All problems of one checkpoint.
Problems problems_of(checkpoint::Listed const& entry) {
  if (!has_meta(entry)) {
    return {{entry.problem}, entry.state == Completeness::refused};
  }
  try {
    return {checkpoint::verify(entry)};
  } catch (IoError const& error) {
    return {{error.what()}, true};
  }
}

DataError none_complete(std::string const& path) {
  return DataError{fmt::format("{}: no complete checkpoint; see offstage checkpoint ls", path)};
}

ExitCode verify(std::string const& path) {
  auto code = ExitCode::done;
  auto const entries = checkpoint::list(path);
  for (checkpoint::Listed const& entry : entries) {
    if (entry.state == Completeness::unfinished) {
      log::info("{}: unfinished save", entry.path);
      continue;
    }
    auto const found = problems_of(entry);
    if (found.problems.empty()) {
      log::info("{}: good{}", entry.path,
                entry.state == Completeness::partial ? ", as far as it is on this node" : "");
      continue;
    }
    if (checkpoint::was_removed(entry)) {
      log::info("{}: removed by a run meanwhile", entry.path);
      continue;
    }
    code = found.refused && code != ExitCode::data ? ExitCode::io : ExitCode::data;
    std::string const what = found.refused     ? "cannot be read"
                             : has_meta(entry) ? "damaged"
                                               : state_of(entry);
    for (std::string const& problem : found.problems) {
      log::info("{}: {}: {}", entry.path, what, problem);
    }
  }
  if (std::ranges::all_of(
          entries, [](Completeness state) { return state == Completeness::unfinished; },
          &checkpoint::Listed::state)) {
    throw none_complete(path);
  }
  return code;
}

/// The newest complete checkpoint under `path`.
checkpoint::Listed newest(std::string const& path) {
  auto const found = checkpoint::newest_complete(path);
  if (!found) {
    throw none_complete(path);
  }
  return *found;
}

ExitCode diff(std::string const& a, std::string const& b) {
  auto const left = newest(a);
  auto const right = newest(b);
  auto const differences = checkpoint::compare(left, right);
  if (differences.empty()) {
    log::info("{} and {}: the same bits", left.path, right.path);
    return ExitCode::done;
  }
  for (std::string const& line : differences) {
    log::write_info(line);
  }
  return ExitCode::other;
}

/// The directory of a run's checkpoints if `path` is its run.dir, the checkpoint of its best
/// validation if `path` is RUN/best, else `path`.
std::string checkpoints_of(std::string const& path) {
  if (!convert::run_of_best(path).empty()) {
    return convert::resolve_parameters(given_checkpoints(path), "");
  }
  std::string const given = given_checkpoints(path);
  std::string const inside = path + "/checkpoints";
  bool const is_usual = given == path && is_directory(inside) && !checkpoint::holds_any(path);
  return is_usual ? inside : given;
}

void require_count(Arguments const& arguments, std::size_t count, std::string_view usage) {
  if (arguments.size() != count + 1) {
    throw UsageError{fmt::format("checkpoint {} takes {} path{}, not {}: offstage checkpoint {}",
                                 arguments.front(), count, count == 1 ? "" : "s",
                                 arguments.size() - 1, usage)};
  }
}

}  // namespace

ExitCode checkpoint_command(Arguments const& arguments) {
  if (arguments.empty() || asks_for_help(arguments)) {
    log::write_lines(checkpoint_usage);
    return arguments.empty() ? ExitCode::usage : ExitCode::done;
  }
  std::string const& command = arguments.front();
  if (command == "ls") {
    auto given = arguments;
    bool const as_json = std::erase(given, "--json") > 0;
    require_count(given, 1, "ls [--json] PATH");
    return ls(checkpoints_of(given[1]), as_json);
  }
  if (command == "verify") {
    require_count(arguments, 1, "verify PATH");
    require_team();
    return verify(checkpoints_of(arguments[1]));
  }
  if (command == "diff") {
    require_count(arguments, 2, "diff A B");
    require_team();
    return diff(checkpoints_of(arguments[1]), checkpoints_of(arguments[2]));
  }
  static std::array<std::string, 3> const known{"ls", "verify", "diff"};
  throw unknown_command(command, known);
}

}  // namespace offstage::cli
