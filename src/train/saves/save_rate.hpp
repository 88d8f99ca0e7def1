#pragma once

#include <string>

#include "checkpoint/save_rate.hpp"
#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"
#include "tiers/storage_path.hpp"

namespace offstage::train {

/// The storage path of a run on which a directory lies: the path whose directory it is in, else one
/// on its device that is not emulated; null: none. Errors: IoError if one of them cannot be looked
/// at.
[[nodiscard]] tiers::StoragePath* path_on(tiers::PathSet const& paths,
                                          std::string const& directory);

/// The part of checkpoint.rate of one rank of a node. `write_rate` is the rate at which a node
/// writes to checkpoint.dir, if checkpoint.rate is a percentage of it.
[[nodiscard]] checkpoint::SaveRate rate_of_rank(config::CheckpointConfig const& config,
                                                int ranks_of_node, double write_rate);

/// Bytes per second that this node can write to checkpoint.dir, which exists: the rate of the path
/// on which it lies, if that is known. Otherwise one of the node's ranks measures it now, while
/// other nodes do too. Collective over both.
/// Errors: mpi::AgreedError.
[[nodiscard]] double measure_checkpoint_directory(config::RunConfig const& config,
                                                  mpi::Communicator const& comm,
                                                  mpi::Communicator const& node,
                                                  tiers::StoragePath* path);

}  // namespace offstage::train
