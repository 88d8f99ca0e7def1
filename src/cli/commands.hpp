#pragma once

#include <exception>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace offstage::cli {

using Arguments = std::vector<std::string>;

/// Runs the command line, given without the program's name. Reports an error as one line on
/// standard error; lost output of a command other than a training is one, too. Returns the
/// process's exit code. Throws nothing.
[[nodiscard]] ExitCode run(Arguments const& arguments) noexcept;

/// `offstage train ...`: one rank of a training, alone or started by mpirun or srun. Starts and
/// ends MPI, and ends the whole job if this rank alone fails. `--help` does without MPI.
[[nodiscard]] ExitCode train_command(Arguments const& arguments);

/// `offstage probe ...`: measures this machine, one rank or those that mpirun or srun started;
/// starts and ends MPI. `--help` does without.
[[nodiscard]] ExitCode probe_command(Arguments const& arguments);
/// `offstage plan ...`: predicts a run's memory and step times. One process, no MPI, no GPU.
[[nodiscard]] ExitCode plan_command(Arguments const& arguments);

/// `offstage report ...`: makes one HTML file on runs from the files in their directories. No MPI.
[[nodiscard]] ExitCode report_command(Arguments const& arguments);

/// `offstage checkpoint ls|verify|diff ...`. No MPI.
/// verify: ExitCode::data if anything is damaged. diff: ExitCode::other if the bits differ.
[[nodiscard]] ExitCode checkpoint_command(Arguments const& arguments);

/// `offstage data inspect|pack ...`. No MPI.
[[nodiscard]] ExitCode data_command(Arguments const& arguments);
/// `offstage generate ...`: samples text from a model. One process, no MPI.
[[nodiscard]] ExitCode generate_command(Arguments const& arguments);

/// `offstage evaluate ...`: the loss of a model on data; one rank, alone or started by mpirun or
/// srun. Starts and ends MPI as train_command does. `--help` does without MPI.
[[nodiscard]] ExitCode evaluate_command(Arguments const& arguments);

/// `offstage import ...` and `offstage export ...`: one rank, alone or started by mpirun or srun.
/// Start and end MPI as train_command does. `--help` does without MPI.
[[nodiscard]] ExitCode import_command(Arguments const& arguments);
[[nodiscard]] ExitCode export_command(Arguments const& arguments);

/// Prints an error as one line with `prefix` in front ("rank 3: "). Returns its exit code.
ExitCode report(std::exception_ptr const& error, std::string const& prefix = "") noexcept;

/// Returns true if `--help` or `-h` is among the arguments.
[[nodiscard]] bool asks_for_help(Arguments const& arguments);

/// The error of a word that is no command. It names the nearest command.
[[nodiscard]] UsageError unknown_command(std::string const& word,
                                         std::span<std::string const> known);

}  // namespace offstage::cli
