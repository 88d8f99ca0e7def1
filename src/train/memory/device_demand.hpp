#pragma once

#include <cstdint>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"

namespace offstage::train {

/// Device memory that a rank of a run takes.
struct DeviceDemand {
  /// Parameters of the shard, and slots for whole layers if there are ranks; or the layers that are
  /// there at a time, where parameters live elsewhere.
  Bytes working_copy{};
  Bytes model{};  ///< activations, gradients and scratch memory
  Bytes
      gradient{};  ///< slices of a layer that come from the ranks, and whole sums of parameters.sharding=zero1
  Bytes slots{};  ///< of the update, beside those that the activations lend it
  Bytes resident{};
  /// Gradients that are summed or wait there (update.device-gradients), and their norms.
  Bytes held{};
  Bytes link{};  ///< what NCCL takes for itself, where it passes layers between ranks
  [[nodiscard]] Bytes total() const {
    return working_copy + model + gradient + slots + resident + held + link;
  }
};

/// Slots for layers that ranks gather where parameters live on the device, as state::WorkingCopy
/// takes them: one more where two layers of a block are held at a time and device.memory has room
/// for all else beside it, on the rank that owns most; all layers with parameters.sharding=zero2 or zero1.
/// Parameters as device_demand's.
template <class T>
[[nodiscard]] int gathering_slots(config::RunConfig const& config, state::ShardMap const& map,
                                  state::Route route, Bytes link);

/// From the configuration alone. Slots are lent where device.memory, if it is given, has no room
/// for all, and gradients take what is left of it, or all that they can use where it is not given.
/// T is numerics.dtype; `route`: of layers between ranks (in_place: the device is host_visible; one
/// rank's is never direct); `subgroup_elements`: as planned; `link`: RankLink::device_bytes.
template <class T>
[[nodiscard]] DeviceDemand device_demand(config::RunConfig const& config,
                                         state::ShardMap const& map, int rank, state::Route route,
                                         std::int64_t subgroup_elements, Bytes link = 0);

}  // namespace offstage::train
