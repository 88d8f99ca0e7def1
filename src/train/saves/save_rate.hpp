#pragma once

#include <string>

#include "checkpoint/store.hpp"
#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"
#include "tiers/storage_path.hpp"

namespace offstage::train {

/// The storage path of a run on which a directory lies: that whose directory it is in, else one on
/// its device that is not emulated; null: none. Errors: IoError if one of them cannot be looked at.
[[nodiscard]] tiers::StoragePath* path_on(tiers::PathSet const& paths,
                                          std::string const& directory);

/// checkpoint.rate as that of one rank of a node whose ranks share it. `write_rate`: what a node
/// writes to checkpoint.dir, for a share of that.
[[nodiscard]] checkpoint::SaveRate rate_of_rank(config::CheckpointConfig const& config,
                                                int ranks_of_node, double write_rate);

/// Bytes per second that this node writes to checkpoint.dir, which is there: those of the path on
/// which it lies, if they are known, else as one of its ranks measures them now, while other nodes
/// do too. Collective over both.
/// Errors: mpi::AgreedError.
[[nodiscard]] double measure_checkpoint_directory(config::RunConfig const& config,
                                                  mpi::Communicator const& comm,
                                                  mpi::Communicator const& node,
                                                  tiers::StoragePath* path);

}  // namespace offstage::train
