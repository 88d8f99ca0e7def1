#pragma once

#include <cstdint>

#include "state/shard.hpp"
#include "train/activation_choice.hpp"
#include "train/run_config.hpp"

namespace offstage::train {

/// Micro-batches of a rank that pass a layer together: each has tensors of its own between layers,
/// and a number for each of them.
constexpr std::int64_t most_together = 4096;

/// Bytes that a step moves between the device and elsewhere, of one rank.
struct ScheduleBytes {
  Bytes horizontal{};  ///< parameters, forward and backward of every micro-batch
  Bytes vertical{};    ///< parameters once in forward and once in backward, and what waits between
                       ///< layers
};

/// Of what the two schedules differ in. `config.train` has activations and `together` of the
/// vertical one. T is numerics.dtype.
template <class T>
[[nodiscard]] ScheduleBytes schedule_bytes(RunConfig const& config, state::ShardMap const& map);

/// train.schedule settled for rank `rank`: of a vertical one TrainConfig::together and
/// ::activations, of a horizontal one nothing. It comes before settle_activations. `auto` is vertical where parameters do not live on the device, a rank has several
/// micro-batches in a step, train.activations keeps nothing that a vertical schedule computes
/// again, and fewer bytes move so (schedule_bytes).
/// Errors: UsageError: `vertical` with more micro-batches of a rank than it takes; names the keys.
template <class T>
void settle_schedule(RunConfig& config, state::ShardMap const& map, int rank,
                     ActivationRoom const& room);

}  // namespace offstage::train
