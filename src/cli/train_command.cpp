#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "base/log.hpp"
#include "cli/all_ranks.hpp"
#include "cli/commands.hpp"
#include "cli/commit.hpp"
#include "cli/options.hpp"
#include "cli/same_options.hpp"
#include "cli/tokenizer_check.hpp"
#include "platform/cpu/affinity.hpp"
#include "platform/h5/file.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/mpi/session.hpp"
#include "platform/slurm/squeue.hpp"
#include "train/run/trainer.hpp"
#include "train/run/watchdog.hpp"

namespace offstage::cli {
namespace {

/// A variable of the environment; null if it is not set.
char const* look_up(char const* name) {
  return std::getenv(name);
}

/// Time for which a run waits for squeue before it starts.
constexpr Seconds squeue_patience{20.0};

/// The options as this rank reads them, before MPI is up.
struct ReadOptions {
  config::RunConfig config;
  std::exception_ptr error;  ///< why there are no options; else null
};

/// Settles whether a progress line is shown: on a terminal that can clear a line, unless
/// run.progress says otherwise. Open MPI gives its ranks a terminal of its own, wherever their
/// output goes. Colours: https://no-color.org.
void settle_progress(config::RunConfig& config) {
  char const* const terminal = std::getenv("TERM");
  char const* const no_color = std::getenv("NO_COLOR");
  bool const is_terminal = ::isatty(STDOUT_FILENO) != 0 && !mpi::has_launcher() &&
                           terminal != nullptr && std::string_view{terminal} != "dumb";
  config.progress = config.wanted_progress == config::Switch::on ||
                    (config.wanted_progress == config::Switch::automatic && is_terminal);
  config.colours = no_color == nullptr || *no_color == '\0';
}

ReadOptions read_options(Arguments const& arguments) {
  ReadOptions read;
  try {
    read.config = parse_train_options(arguments);
    settle_progress(read.config);
  } catch (...) {
    read.error = std::current_exception();
  }
  return read;
}

/// Time within which PMIx of Slurm gives up a node that it does not reach and ends the step: more
/// than the 127 s of a TCP connection. If ranks end before, its daemon on a node stays until then
/// with the step's socket. The job's next attempt, whose step has the same number, could then not
/// start on that node.
constexpr Seconds pmix_patience{150.0};

/// A limit above that of the run's own watchdog, which therefore reports first; 0: no limit.
Seconds limit_beside_run(Seconds watchdog) {
  if (watchdog <= Seconds{}) {
    return watchdog;
  }
  auto const limit = watchdog + squeue_patience;
  return slurm::has_slurm_pmix(look_up) ? std::max(limit, pmix_patience) : limit;
}

void end_stuck_job() {
  mpi::abort_stuck_job(static_cast<int>(ExitCode::other));
}

/// Returns whether the end is past. Such an end says nothing about the time left: the environment
/// is an older job's, the limit was raised meanwhile, or the site lets jobs run on.
bool is_past(slurm::TimePoint end) {
  return end <= slurm::TimePoint::clock::now();
}

/// Asks squeue for the job's end. A run starts even if nobody knows that end.
void ask_for_end(slurm::Job& job) {
  auto answer = slurm::ask_end_time(job.id, squeue_patience);
  if (answer.end && is_past(*answer.end)) {
    answer = {std::nullopt, "the end that squeue names is past"};
  }
  job.end = answer.end;
  if (!answer.problem.empty()) {
    log::warning("when Slurm job {} ends is unknown: {}; set train.max-time below its limit",
                 job.id, answer.problem);
  }
}

/// Looks for the job's end. Collective: no rank's watchdog runs while rank 0 waits for squeue.
void look_for_job(config::RunConfig& config, mpi::Communicator const& comm) {
  config.job = slurm::job_of(look_up);
  config.node = slurm::node_name(look_up, cpu::host_name());
  if (comm.rank() == 0 && config.job && (!config.job->end || is_past(*config.job->end))) {
    ask_for_end(*config.job);
  }
  comm.barrier();
}

/// A number above one in the environment; null: there is none.
char const* several(char const* variable) {
  char const* const number = std::getenv(variable);
  return number != nullptr && std::strtol(number, nullptr, 10) > 1 ? number : nullptr;
}

/// Warns if `offstage train` has one rank although the job has several tasks, or a launcher of
/// PyTorch started several processes: then one rank works, or each is a run of its own.
void look_for_launcher(mpi::Communicator const& comm) {
  constexpr char const* by_mpirun = "OMPI_COMM_WORLD_SIZE";
  if (comm.size() > 1 || std::getenv(by_mpirun) != nullptr) {
    return;
  }
  if (char const* const tasks = several("SLURM_NTASKS")) {
    log::warning(
        "this job has {} tasks (SLURM_NTASKS), but this run has one rank: start it by srun "
        "--mpi=pmix or mpirun, as jobs/train.sbatch does, or ask for one task",
        tasks);
  } else if (char const* const processes = several("WORLD_SIZE")) {
    log::warning(
        "torchrun, accelerate or deepspeed started {} processes (WORLD_SIZE), but this run has one "
        "rank, and each of them is a run of its own: start it by mpirun or srun --mpi=pmix",
        processes);
  }
}

/// Runs the training. Every rank has read the options.
ExitCode run_together(ReadOptions read, mpi::Communicator const& comm,
                      train::StopSignals& signals) {
  mpi::agree(comm, [&] {
    if (read.error) {
      std::rethrow_exception(read.error);
    }
  });
  config::RunConfig& config = read.config;
  config.commit = commit();
  require_same_options(config.settings, comm);
  look_for_launcher(comm);
  mpi::agree(comm, [&] {
    if (comm.rank() == 0) {
      warn_of_other_tokenizers(
          {{"data.train", config.data.train}, {"data.valid", config.data.valid}}, "train.init-from",
          config.train.init_from);
    }
  });
  look_for_job(config, comm);
  train::Watchdog const watchdog{config.watchdog, comm.rank(), end_stuck_job};
  return train::run_training(config, comm, signals);
}

}  // namespace

ExitCode train_command(Arguments const& arguments) {
  if (asks_for_help(arguments)) {
    log::write_lines(train_help());
    return ExitCode::done;
  }
  // The end of a reader of the output (tee, head) must not end the training.
  std::signal(SIGPIPE, SIG_IGN);
  // This object lives from before MPI starts until it has ended, so that a signal at any time asks
  // for a stop.
  train::StopSignals signals;
  auto read = read_options(arguments);
  // If nodes do not reach each other, MPI may neither start nor end.
  train::Watchdog const watchdog{limit_beside_run(read.config.watchdog), std::nullopt,
                                 end_stuck_job};
  h5::prepare_library();
  mpi::Session const session;
  auto const comm = mpi::Communicator::world();
  return together(comm, [&] { return run_together(std::move(read), comm, signals); });
}

}  // namespace offstage::cli
