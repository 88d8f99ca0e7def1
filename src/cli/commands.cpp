#include "cli/commands.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <system_error>

#include "base/failure.hpp"
#include "base/log.hpp"
#include "base/nearest.hpp"
#include "base/simd.hpp"
#include "base/version.hpp"
#include "cli/commit.hpp"
#include "cli/options.hpp"
#include "platform/mpi/session.hpp"

namespace offstage::cli {
namespace {

constexpr char const* commands_usage =
    R"(Usage: offstage COMMAND ...

  train --config FILE [--section.key=value]...   train a model; mpirun or srun starts the ranks
  train --help                                   all keys with their defaults
  plan --config FILE [--ranks N] ...             does a run fit, how long is a step, what helps
  probe [--output FILE] [--dir PATH]...          measure this machine for plan and train
  report RUN_DIR...                              draw what runs have done, as one HTML file
  checkpoint ls PATH                             list the checkpoints of a directory
  checkpoint verify PATH                         read them whole and compare all checksums
  checkpoint diff A B                            compare two of them bit for bit
  import --from DIR --to DIR                     make a checkpoint from a Hugging Face model
  export --from PATH --to DIR                    make a Hugging Face model from a checkpoint
  generate --from PATH [--prompt TEXT] ...       continue a text with a model
  evaluate --from PATH --data FILE ...           loss and perplexity of a model on data
  data inspect PATH                              say what is in a file of tokens
  data pack --from TEXT --to PREFIX ...          make a file of tokens from text
  help COMMAND                                   explain a command, as COMMAND --help does
  help KEY                                       explain keys, given a name or a part of names
  --version                                      version, commit, libraries, GPU architectures

Exit codes: 0 done; 75 saved, more to do; 64 usage; 65 bad data; 74 I/O; 70 internal; 1 else.)";

struct Command {
  std::string name;
  ExitCode (*run)(Arguments const&);
};

Command const* find_command(std::string const& word);
ExitCode dispatch(Arguments const& arguments);

/// `help COMMAND` is `COMMAND --help`, also of a COMMAND of two words. Other words are parts of
/// keys.
ExitCode help(Arguments const& arguments) {
  bool const of_something = !arguments.empty() && !arguments.front().starts_with('-') &&
                            arguments.front() != "help" && arguments.front() != "version";
  if (of_something) {
    auto const keys =
        find_command(arguments.front()) == nullptr ? keys_help(arguments.front()) : std::string{};
    if (!keys.empty()) {
      log::write_lines(keys.substr(0, keys.size() - 1));
      return ExitCode::done;
    }
    Arguments of_it = arguments;
    of_it.emplace_back("--help");
    return dispatch(of_it);
  }
  log::write_lines(commands_usage);
  return ExitCode::done;
}

ExitCode print_version(Arguments const& /*unused*/) {
  log::info("offstage {}, commit {}", version(), commit());
  log::info("built by {}", build_description());
  log::info("libraries: {}; {}", mpi::library_version(), libraries());
  log::info("GPU architectures: {}", gpu_architectures());
  log::info("this processor: {}", name_of(best_simd()));
  return ExitCode::done;
}

std::span<Command const> commands() {
  static std::array<Command, 12> const all{{{"train", train_command},
                                            {"plan", plan_command},
                                            {"probe", probe_command},
                                            {"report", report_command},
                                            {"checkpoint", checkpoint_command},
                                            {"import", import_command},
                                            {"export", export_command},
                                            {"data", data_command},
                                            {"generate", generate_command},
                                            {"evaluate", evaluate_command},
                                            {"help", help},
                                            {"version", print_version}}};
  return all;
}

/// Null: there is no such command.
Command const* find_command(std::string const& word) {
  auto const found = std::ranges::find(commands(), word, &Command::name);
  return found == commands().end() ? nullptr : &*found;
}

ExitCode dispatch(Arguments const& arguments) {
  std::string word = arguments.empty() ? "help" : arguments.front();
  Arguments const rest{arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end()};
  if (word == "--help" || word == "-h") {
    word = "help";
  } else if (word == "--version") {
    word = "version";
  }
  if (Command const* const found = find_command(word)) {
    return found->run(rest);
  }
  std::vector<std::string> known;
  std::ranges::transform(commands(), std::back_inserter(known), &Command::name);
  throw unknown_command(word, known);
}

/// Returns whether lost output is an error of the command. A training goes on without it.
bool needs_output(Arguments const& arguments) {
  return arguments.empty() || arguments.front() != "train" || asks_for_help(arguments);
}

}  // namespace

ExitCode run(Arguments const& arguments) noexcept {
  try {
    ExitCode const code = dispatch(arguments);
    int const lost = log::take_lost_output();
    if (lost != 0 && code == ExitCode::done && needs_output(arguments)) {
      throw IoError{"cannot write to", "standard output", lost};
    }
    if (lost != 0 && !needs_output(arguments)) {
      log::warning("lines are missing in standard output ({}); run.dir has metrics.jsonl",
                   std::generic_category().message(lost));
    }
    return code;
  } catch (...) {
    return report(std::current_exception());
  }
}

ExitCode report(std::exception_ptr const& error, std::string const& prefix) noexcept {
  try {
    Failure const failure = failure_of(error);
    log::error("{}{}", prefix, failure.text);
    return failure.code;
  } catch (...) {
    // There was no memory for the line.
    return ExitCode::other;
  }
}

bool asks_for_help(Arguments const& arguments) {
  return std::ranges::any_of(arguments,
                             [](std::string const& a) { return a == "--help" || a == "-h"; });
}

UsageError unknown_command(std::string const& word, std::span<std::string const> known) {
  auto const near = near_word(word, known);
  auto const advice = near.empty() ? fmt::format("known are {}", fmt::join(known, ", "))
                                   : fmt::format("the nearest is {}", near);
  return UsageError{fmt::format("unknown command '{}'; {}; see offstage --help", word, advice)};
}

}  // namespace offstage::cli
