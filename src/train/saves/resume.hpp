#pragma once

#include <string>

#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

/// checkpoint.resume with the path of a checkpoint in place of RUN/best. Rank 0 looks for all.
/// Collective. Errors: mpi::AgreedError; those of convert::resolve_parameters.
[[nodiscard]] std::string settle_resume(std::string const& resume, mpi::Communicator const& comm);

/// Returns whether the checkpoint at which a run begins is in its checkpoint.dir, or of its level
/// 1. Errors: IoError if that cannot be told.
[[nodiscard]] bool begins_at_own_checkpoint(config::CheckpointConfig const& checkpoint);

}  // namespace offstage::train
