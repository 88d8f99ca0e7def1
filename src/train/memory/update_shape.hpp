#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "plan/memory.hpp"
#include "plan/share.hpp"
#include "update/device_lane.hpp"

namespace offstage::train {

/// The shape of a run's updates beside its configuration.
struct UpdateShape {
  std::int64_t elements{};           ///< elements of this rank's shard
  std::int64_t subgroup_elements{};  ///< elements of the largest subgroup
  Bytes gradient_bytes{};            ///< bytes of a gradient's element
  int sum_planes = 1;                ///< values of an element in sums
  Bytes parameter_bytes{};           ///< bytes of an element of the working copy
  plan::StorageTraffic storage{};    ///< bytes that an update moves (update_demand.hpp)
  int workers = 1;
  /// Gradients are summed on the device as far as it has room, also those that the cores will
  /// update.
  bool sums_on_device = false;
  /// Elements of the shard where blocks of layers begin whose sums have room there in turn
  /// (plan::places_in_turn); empty: sums have it for a whole step.
  std::vector<std::int64_t> blocks{};

  /// Bytes of the device for each element whose gradient is held there.
  [[nodiscard]] Bytes held_bytes() const {
    return gradient_bytes * (sums_on_device ? sum_planes : 1);
  }
  /// Elements that have a place there, of the `held` bytes that device_demand gives gradients and
  /// their norms; and those of them that are not for sums in turn.
  [[nodiscard]] std::int64_t held_elements(Bytes held) const;
  [[nodiscard]] std::int64_t staying_elements(Bytes held) const;
  /// Elements that gradients which stay leave to sums in turn, of room for so many: those of the
  /// largest block, unless all have a place. Gradients that cannot stay leave once a step and come
  /// back, and those that are not summed there leave with every micro-batch.
  [[nodiscard]] std::int64_t reserved_in_turn(std::int64_t room) const;
};

/// Returns the settings of the device lane: its chunks and buffers.
[[nodiscard]] update::DeviceLaneSettings lane_settings(config::RunConfig const& config,
                                                       UpdateShape const& shape);
/// Lends the lane memory that activations leave idle between backward and forward. With
/// update.overlap=on a buffer stays its own, with which an update begins under backward.
void lend(update::DeviceLaneSettings& lane, std::span<std::byte> idle,
          config::RunConfig const& config);
/// Returns true if updates need a device lane: the device takes part, or new parameters have to be
/// sent to it.
[[nodiscard]] bool needs_lane(config::RunConfig const& config, bool host_visible);

/// Returns how many trips of an update go on at a time.
[[nodiscard]] int update_workers(config::RunConfig const& config, plan::MemoryPlan const& memory,
                                 bool host_visible);

/// Returns the device memory for gradients that are summed or wait there (update.device-gradients):
/// as much as is asked for, or all that is `free`, but no more than they can need. They need room
/// for all if they are summed there or with update.device-share=auto. Otherwise they need room for
/// those of the share and of resident subgroups.
[[nodiscard]] Bytes gradient_room(config::RunConfig const& config, UpdateShape const& shape,
                                  bool host_visible, Bytes free);
/// Returns the device memory that such gradients and their norms take in any case: that which is
/// asked for.
[[nodiscard]] Bytes given_gradients(config::RunConfig const& config, UpdateShape const& shape,
                                    bool host_visible);

}  // namespace offstage::train
