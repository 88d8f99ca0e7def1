#include <fmt/format.h>

#include <boost/program_options.hpp>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "cli/command_options.hpp"
#include "cli/commands.hpp"
#include "cli/recorded_settings.hpp"
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
Of several directories, those without a metrics.jsonl are left out with a warning.

  offstage report runs/lr-3e-4 runs/lr-1e-3 --output lr.html)";

constexpr char const* run_dirs_name = "run-dir";

/// Values of effective.cfg, which is missing if a run was stopped before its first step. An empty
/// map where it cannot be read.
std::map<std::string, std::string> settings_of(std::string const& directory) {
  return read_recorded_settings(report::text_beside(directory, config::effective_config_name));
}

report::Run read_with_settings(std::string const& directory) {
  auto run = report::read_run(directory);
  run.settings = settings_of(directory);
  if (auto const [count, first] = run.bad_lines; count > 0) {
    auto const more = count - 1;
    log::warning("{}/metrics.jsonl:{}: this is no JSON object; it is left out{}", directory, first,
                 more == 0 ? std::string{}
                           : fmt::format(", as {} {} line{} behind it", more == 1 ? "is" : "are",
                                         more, more == 1 ? "" : "s"));
  }
  return run;
}

/// The runs that can be read; of several directories others are left out.
/// Errors: that of the first directory, if there is no run.
std::vector<report::Run> read_runs(std::vector<std::string> const& directories) {
  std::vector<report::Run> runs;
  std::exception_ptr first;
  std::vector<std::string> left_out;
  for (auto const& directory : directories) {
    try {
      runs.push_back(read_with_settings(directory));
    } catch (Error const& error) {
      first = first ? first : std::current_exception();
      left_out.emplace_back(error.what());
    }
  }
  if (runs.empty()) {
    std::rethrow_exception(first);
  }
  for (std::string const& message : left_out) {
    log::warning("{}; it is left out", message);
  }
  return runs;
}

/// Refuses to put a report in the place of something else, such as the run's own files.
void require_report_or_nothing(std::string const& page, std::string const& output) {
  std::error_code unknown;  // WholeFile says what it is
  if (std::filesystem::symlink_status(output, unknown).type() !=
      std::filesystem::file_type::regular) {
    return;
  }
  std::string first(page.find('\n'), '\0');
  std::ifstream file{output};
  file.read(first.data(), static_cast<std::streamsize>(first.size()));
  if (file.gcount() > 0 && !page.starts_with(first)) {
    throw UsageError{fmt::format(
        "--output={}: there is a file that is no report; remove it, or name another", output)};
  }
}

/// Writes the page. By default it goes into a run's directory, which its reader may not be allowed
/// to change.
void write_page(std::string const& page, std::string const& output) {
  require_report_or_nothing(page, output);
  try {
    WholeFile{"report", output}.commit(page);
  } catch (IoError const& error) {
    auto const number = error.error_number();
    if (number != EACCES && number != EPERM && number != EROFS) {
      throw;
    }
    throw IoError{fmt::format("{}; write it elsewhere with --output FILE", error.what()), number};
  }
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
  auto runs = read_runs(given[run_dirs_name].as<std::vector<std::string>>());
  report::tell_apart(runs);
  auto const output =
      given.count("output") > 0
          ? given["output"].as<std::string>()
          : (std::filesystem::path{runs.front().directory} / "report.html").string();
  write_page(report::page(runs), output);
  log::info("wrote {}", output);
  return ExitCode::done;
}

}  // namespace offstage::cli
