#pragma once

#include <cstdint>
#include <string>

#include "config/run_config.hpp"
#include "state/shard.hpp"
#include "train/memory/room.hpp"

namespace offstage::train {

/// Returns whether ranks gather each layer once in a step, so that it stays on the device until the
/// step's end.
[[nodiscard]] bool gathers_once(config::RunConfig const& config, int ranks);

/// Number of layers that ranks gather in a step, if parameters live on the device, for a
/// configuration whose schedule is settled. 0: there is one rank, or parameters live elsewhere.
/// Every rank takes part in all gathers.
[[nodiscard]] std::int64_t gathers_per_step(config::RunConfig const& config, int ranks);
/// Returns whether the blocks of numerics.sum-block, each run by one rank, take no more rounds than
/// micro-batches that are dealt one by one.
[[nodiscard]] bool zero1_keeps_ranks_busy(config::RunConfig const& config, int ranks);
/// A warning if some ranks have no micro-batch of a step to run, or no block (parameters.sharding=
/// zero1), with what would be right. Empty if each rank has one.
[[nodiscard]] std::string warning_of_idle_ranks(config::RunConfig const& config, int ranks);
/// The gathers in words: "7 in a step, each layer once, in place of 26
/// (parameters.sharding=zero2)". Empty if there are none.
[[nodiscard]] std::string describe_gathers(config::RunConfig const& config, int ranks);

/// Settles parameters.sharding=auto if no plan did. zero2 if parameters live on the device and
/// everything else has room beside them, whole, by a configuration that is settled otherwise. zero1
/// if gradients have room too, and zero1_keeps_ranks_busy. zero3 if nobody told how much memory a
/// GPU has.
void settle_sharding(config::RunConfig& config, state::ShardMap const& map, Room const& room);

}  // namespace offstage::train
