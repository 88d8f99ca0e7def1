#pragma once

#include <cstdint>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"

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
  [[nodiscard]] Bytes total() const {
    return working_copy + model + gradient + chunk_buffers + resident + held + rank_link;
  }
};

/// The number of slots for layers that ranks gather, if parameters live on the device, as
/// state::WorkingCopy takes it. There is one more if two layers of a block are held at a time and
/// device.memory has room for everything else beside it, on the rank that owns most. With
/// parameters.sharding=zero2 or zero1 all layers have memory. Arguments are as device_demand's.
template <class T>
[[nodiscard]] int gathering_layer_slots(config::RunConfig const& config, state::ShardMap const& map,
                                        state::Route route, Bytes link);

/// The device memory of a rank, from the configuration alone. If device.memory is given and has no
/// room for all chunk buffers of the update, some are in lent memory, but with update.overlap=on
/// not all. Gradients take the memory that is left, or all that they can use if device.memory is
/// not given. T is numerics.dtype. `route` is that of layers between ranks (in_place: the device is
/// host_visible; with one rank it is never direct). `subgroup_elements` is as planned, and `link`
/// is RankLink::device_bytes.
template <class T>
[[nodiscard]] DeviceDemand device_demand(config::RunConfig const& config,
                                         state::ShardMap const& map, int rank, state::Route route,
                                         std::int64_t subgroup_elements, Bytes link = 0);

/// Checks that the device has room.
/// Errors: UsageError naming the limit, the need and keys that lower it.
void require_room(DeviceDemand const& demand, config::RunConfig const& config, Bytes limit);

}  // namespace offstage::train
