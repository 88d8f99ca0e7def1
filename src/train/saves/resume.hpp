#pragma once

#include <string>
#include <vector>

#include "checkpoint/meta.hpp"
#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

/// checkpoint.resume as "auto", "none" or the path of a checkpoint: a run or a directory of
/// checkpoints means its newest one, RUN/best that of its best validation, and checkpoint.dir
/// itself "auto", which knows of level 1 too. Rank 0 looks for all. Collective. Errors:
/// mpi::AgreedError; those of convert::resolve_checkpoint.
[[nodiscard]] std::string settle_resume(config::CheckpointConfig const& checkpoint,
                                        mpi::Communicator const& comm);

/// The path that checkpoint.resume names; empty: it names none.
[[nodiscard]] std::string named_checkpoint(config::CheckpointConfig const& checkpoint);

/// Returns whether the checkpoint at which a run begins is in its checkpoint.dir, or of its level
/// 1. Errors: IoError if that cannot be told.
[[nodiscard]] bool begins_at_own_checkpoint(config::CheckpointConfig const& checkpoint);

/// Logs what has changed since `checkpoint`, from which the run goes on by `program`, and warns of
/// changes that do not do what one thinks.
void say_what_changed(checkpoint::Meta const& checkpoint, config::RunConfig const& config,
                      std::vector<config::Setting> const& settings, std::string const& program);

}  // namespace offstage::train
