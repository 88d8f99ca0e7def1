#pragma once

#include "base/error.hpp"
#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/saves/signals.hpp"

namespace offstage::train {

/// Runs one training, from its start or a checkpoint to its last step, a stop signal, the time
/// limit or a STOP file. Prints header, log lines and end table on rank 0. Writes metrics and
/// checkpoints.
///
/// Collective: over `comm`. Durable work is done when it returns.
/// Returns:    ExitCode::done, or ExitCode::more if it was stopped and saved.
/// Errors:     mpi::AgreedError for everything found before the first step and in saves; other
///             errors of one rank alone (a failed read of the tiers) are thrown there, and the
///             caller must end the job.
ExitCode run_training(config::RunConfig const& config, mpi::Communicator const& comm,
                      StopSignals& signals);

}  // namespace offstage::train
