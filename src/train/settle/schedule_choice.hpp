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

/// Limit of a rank's micro-batches that pass a layer together. Each has tensors of its own between
/// layers, and a number for each of them.
constexpr std::int64_t most_together = 4096;

/// Bytes that a step of one rank moves to and from the device.
struct ScheduleBytes {
  Bytes horizontal{};  ///< parameters, forward and backward of every micro-batch
  /// Parameters once in forward and once in backward, and tensors that wait between layers.
  Bytes vertical{};
};

/// The bytes in which the two schedules differ. `config.train` has the activations and `together`
/// of the vertical one.
[[nodiscard]] ScheduleBytes schedule_bytes(config::RunConfig const& config,
                                           state::ShardMap const& map);

/// Returns whether no activation stays that a vertical schedule computes again.
[[nodiscard]] bool suits_vertical(activations::Policy const& policy);

/// Values of TrainConfig::together that train.schedule allows with these activations, on so many
/// ranks.
[[nodiscard]] std::vector<int> allowed_schedules(config::RunConfig const& config, int ranks);

/// Settles train.schedule for the fullest rank: writes TrainConfig::together and ::activations of a
/// vertical schedule, and nothing of a horizontal one. It comes before settle_activations. `auto`
/// is vertical if parameters do not live on the device, a rank has several micro-batches in a step
/// but at most most_together, train.activations keeps nothing that a vertical schedule computes
/// again, there is room for it, and it moves fewer bytes (schedule_bytes).
/// Errors: UsageError: `vertical` with more micro-batches of a rank than most_together; names the
///         keys.
void settle_schedule(config::RunConfig& config, state::ShardMap const& map, Room const& room);

/// Settles TrainConfig::staying of a vertical schedule whose tensors leave the device: as many stay
/// as its memory has room for beside everything else. What moves most in a step for each byte there
/// comes first: the gradients of inputs, then the sums of one block (plan::places_in_turn), the
/// tied head's tables, and the inputs. Gradients that are held for longer get the rest. It comes
/// behind all other choices of what takes device memory.
void settle_waiting(config::RunConfig& config, state::ShardMap const& map, Room const& room);

/// Settles train.schedule and train.activations for a run. Rank 0 decides for all ranks, whose
/// memory plans may differ. Rates that are needed and were not given are measured. `room` is the
/// same on all ranks. Writes config.train, config.sharding and, if products were measured,
/// config.platform_products. Returns ActivationChoice::why. Collective. Errors: mpi::AgreedError.
[[nodiscard]] std::string settle_for_all(config::RunConfig& config, state::ShardMap const& map,
                                         mpi::Communicator const& comm, Room const& room,
                                         device::Device& device);

}  // namespace offstage::train
