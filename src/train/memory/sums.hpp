#pragma once

#include <cstdint>
#include <string>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"
#include "update/gradients/block_rounds.hpp"

namespace offstage::train {

/// Micro-batches of a step, of all ranks.
[[nodiscard]] std::int64_t micro_batches(config::TrainConfig const& train);

/// Micro-batches whose gradients are summed before sums are (update::SumBlocks::size), by
/// numerics.sum-block; 0: sums have one level, as they have where a block is one micro-batch, or
/// all of them.
[[nodiscard]] std::int64_t sum_block(config::RunConfig const& config);

/// Returns whether each rank sums whole gradients of its blocks on its device
/// (parameters.sharding=zero1).
[[nodiscard]] bool sums_whole_blocks(config::RunConfig const& config);
/// The rounds in which a step's micro-batches are dealt to so many ranks.
[[nodiscard]] update::BlockRounds dealt(config::RunConfig const& config, int ranks);

/// A step in words: "8 sequences, 192 tokens, 4 micro-batches, 2 on each rank". If ranks have not
/// as many, it says so, and which train.global-batch would be right. Nothing on ranks if there is
/// one.
[[nodiscard]] std::string describe_step(config::RunConfig const& config, int ranks);

/// Returns true if the sums of gradients are in FP32; else they are in T.
[[nodiscard]] bool accumulates_fp32(config::RunConfig const& config);
/// Bytes of an element of the accumulated gradient, and of an element that the update takes.
[[nodiscard]] Bytes accumulated_bytes(config::RunConfig const& config);
[[nodiscard]] Bytes gradient_bytes(config::RunConfig const& config);

/// Bytes that an element of the shard takes where sums wait between rounds: in extents, between a
/// vertical schedule's rounds of a layer, and on a device that sums.
[[nodiscard]] Bytes extent_sum_bytes(config::RunConfig const& config);
[[nodiscard]] Bytes layer_sum_bytes(config::RunConfig const& config);
[[nodiscard]] int planes_of_sums(config::RunConfig const& config);

/// Memory of a rank's gradients between the model and the tiers, in host memory and on the device:
/// of update::GradientAccumulator or update::BlockGradients.
[[nodiscard]] Bytes gradient_host_bytes(config::RunConfig const& config, state::ShardMap const& map,
                                        int rank, state::Route route);
[[nodiscard]] Bytes gradient_device_bytes(config::RunConfig const& config,
                                          state::ShardMap const& map, int rank, state::Route route);

/// The sums in words: "8 blocks of 4 micro-batches (numerics.sum-block=4)". Empty with one level.
[[nodiscard]] std::string describe_sums(config::RunConfig const& config);

}  // namespace offstage::train
