#pragma once

#include <cstdint>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "state/shard.hpp"
#include "train/memory/room.hpp"

namespace offstage::train {

/// Device memory that a rank of a run takes.
struct DeviceDemand {
  /// Parameters of the shard, and slots for whole layers if there are several ranks; or the layers
  /// on the device at a time, if parameters live elsewhere.
  Bytes working_copy{};
  /// Slots for whole layers in `working_copy`, beside one for larger layers; 0: there are none, or
  /// all layers have memory.
  int layer_slots{};
  Bytes model{};  ///< activations, gradients and scratch memory
  /// Slices of a layer that come from the ranks, and whole sums with parameters.sharding=zero1.
  Bytes gradient{};
  Bytes chunk_buffers{};  ///< buffers of the update, beside those in memory lent by activations
  Bytes resident{};
  /// Gradients that are summed or wait on the device (update.device-gradients), and their norms.
  Bytes held{};
  Bytes rank_link{};  ///< memory that NCCL takes for itself, if it passes layers between ranks
  /// All buffers of the update are in memory lent by activations, so that no update can begin under
  /// backward.
  bool buffers_are_lent{};
  bool attention_buffer{};  ///< as the function has it; the buffer is in `model`
  /// The buffer would be there if the device had room for it.
  bool lacks_attention_buffer{};
  [[nodiscard]] Bytes total() const {
    return working_copy + model + gradient + chunk_buffers + resident + held + rank_link;
  }
};

/// Returns whether attention's gradient has a buffer of its own (model::GradientBuffers): where
/// each leaves for other ranks under backward, which may take as long, if the run fits beside it on
/// the rank that owns most. Whole gradients are added at once (update::BlockGradients), and so is
/// what host code sees.
[[nodiscard]] bool attention_buffer(config::RunConfig const& config, state::ShardMap const& map,
                                    Room const& room);

/// The number of slots for layers that ranks gather, if parameters live on the device, as
/// state::WorkingCopy takes it. There is one more if two layers of a block are held at a time and
/// the device has room for everything else beside it, on the rank that owns most. With
/// parameters.sharding=zero2 or zero1 all layers have memory.
[[nodiscard]] int gathering_layer_slots(config::RunConfig const& config, state::ShardMap const& map,
                                        Room const& room);

/// The device memory of a rank, from the configuration and the room alone. A device with a limit
/// may have no room for all chunk buffers of the update: then some are in lent memory (lend). If
/// that does not suffice, attention's gradient has no buffer of its own. Gradients take the memory
/// that is left, or all that they can use if there is no limit. `subgroup_elements` is as planned.
[[nodiscard]] DeviceDemand device_demand(config::RunConfig const& config,
                                         state::ShardMap const& map, int rank, Room const& room,
                                         std::int64_t subgroup_elements);

/// Checks that the device has room.
/// Errors: UsageError naming the limit, the need and keys that lower it.
void require_room(DeviceDemand const& demand, config::RunConfig const& config, Bytes limit);

}  // namespace offstage::train
