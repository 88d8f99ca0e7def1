#include <fmt/format.h>

#include <boost/program_options.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "cli/command_options.hpp"
#include "cli/commands.hpp"
#include "cli/given_values.hpp"
#include "config/effective_config.hpp"
#include "report/page.hpp"
#include "report/run.hpp"

namespace offstage::cli {
namespace {

namespace po = boost::program_options;

constexpr char const* report_usage =
    R"(Usage: offstage report RUN_DIR... [--output FILE]

Draws what runs have done, also while they go on, from metrics.jsonl, header.txt and
effective.cfg in each RUN_DIR: loss, phases of a step, predicted and achieved times, storage
paths, memory, starts and saves over time, and the keys in which runs differ. The result is one
HTML file that runs no script and fetches nothing.
  --output     the file to write [report.html in the first RUN_DIR]

  offstage report runs/lr-3e-4 runs/lr-1e-3 --output lr.html)";

constexpr char const* run_dirs_name = "run-dir";

/// Values of effective.cfg, which is missing if a run was stopped before its first step.
std::map<std::string, std::string> settings_of(std::filesystem::path const& folder) {
  std::map<std::string, std::string> settings;
  auto const path = folder / config::effective_config_name;
  if (std::error_code ignored; std::filesystem::exists(path, ignored)) {
    for (auto const& [key, values] : read_config_file(path.string())) {
      std::string& all = settings[key];
      for (auto const& given : values) {
        all += (all.empty() ? "" : " ") + given.value;
      }
    }
  }
  return settings;
}

}  // namespace

ExitCode report_command(Arguments const& arguments) {
  if (arguments.empty() || asks_for_help(arguments)) {
    log::write_lines(report_usage);
    return arguments.empty() ? ExitCode::usage : ExitCode::done;
  }
  po::options_description known;
  known.add_options()("output", po::value<std::string>())(
      run_dirs_name, po::value<std::vector<std::string>>()->composing());
  auto const given = parse_command_options(arguments, known, "report", run_dirs_name);
  if (given.count(run_dirs_name) == 0) {
    throw UsageError{"report wants the run.dir of a run; see offstage report --help"};
  }
  std::vector<report::Run> runs;
  for (auto const& directory : given[run_dirs_name].as<std::vector<std::string>>()) {
    runs.push_back(report::read_run(directory));
    runs.back().settings = settings_of(directory);
  }
  report::tell_apart(runs);
  auto const output =
      given.count("output") > 0
          ? given["output"].as<std::string>()
          : (std::filesystem::path{runs.front().directory} / "report.html").string();
  WholeFile{"report", output}.commit(report::page(runs));
  log::info("wrote {}", output);
  return ExitCode::done;
}

}  // namespace offstage::cli
