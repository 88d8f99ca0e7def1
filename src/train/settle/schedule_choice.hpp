#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "device/device.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/shard.hpp"
#include "train/settle/activation_choice.hpp"

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

/// Bytes of that in which the two schedules differ. `config.train` has activations and `together`
/// of the vertical one. T is numerics.dtype.
template <class T>
[[nodiscard]] ScheduleBytes schedule_bytes(config::RunConfig const& config,
                                           state::ShardMap const& map);

/// Values of TrainConfig::together that train.schedule allows with these activations, on so many
/// ranks.
[[nodiscard]] std::vector<int> allowed_schedules(config::RunConfig const& config, int ranks);

/// Settles train.schedule for rank `rank`: writes TrainConfig::together and ::activations of a
/// vertical schedule, and nothing of a horizontal one. It comes before settle_activations. `auto`
/// is vertical where parameters do not live on the device, a rank has several micro-batches in a
/// step, but no more than it takes, train.activations keeps nothing that a vertical schedule
/// computes again, the room suffices for it, and fewer bytes move so (schedule_bytes).
/// Errors: UsageError: `vertical` with more micro-batches of a rank than it takes; names the keys.
template <class T>
void settle_schedule(config::RunConfig& config, state::ShardMap const& map, int rank,
                     ActivationRoom const& room);

/// train.schedule and train.activations settled for a run: rank 0 decides for all, whose memory
/// plans may differ. Rates that it needs and nobody gave are measured. `room`: the same on all
/// ranks. Writes config.train and, if products were measured, config.platform_products; returns
/// ActivationChoice::why.
/// Collective. Errors: mpi::AgreedError.
template <class T>
[[nodiscard]] std::string settle_for_all(config::RunConfig& config, state::ShardMap const& map,
                                         mpi::Communicator const& comm, ActivationRoom const& room,
                                         device::Device& device);

}  // namespace offstage::train
