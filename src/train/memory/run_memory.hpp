#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "device/device.hpp"
#include "launch/shortage.hpp"
#include "plan/memory.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"
#include "train/memory/room.hpp"
#include "train/memory/update_shape.hpp"

namespace offstage::train {

/// The part of a run's room that is known before memory is taken: the route of layers and the
/// memory of devices, on the rank with least. Collective.
[[nodiscard]] Room device_room(config::RunConfig const& config, mpi::Communicator const& comm,
                               state::RankLink const& link, device::Device const& device);

/// The limits of a run in its nodes' memory and on its devices, as found at its start.
///
/// Device memory is a rank's. That of an emulated device is host memory too, but tiers.host-memory
/// does not count it: memory that it will still take is left free.
class RunMemory {
 public:
  /// Call it when memory has been taken for activations, for a working copy that lives on the
  /// device and for gathering it, and for nothing else. `room` is this node's, without its host
  /// memory. `config`, `comm`, `map` and `device` must outlive this object. Collective.
  /// Errors: mpi::AgreedError.
  RunMemory(config::RunConfig const& config, mpi::Communicator const& comm,
            state::ShardMap const& map, Room const& room, device::Device const& device);

  /// The room with the node's limit of host memory: tiers.host-memory, or a part of the free
  /// memory.
  [[nodiscard]] Room const& room() const noexcept { return room_; }
  /// Layers that are brought to the device at a time, for which every rank's device has room; 0:
  /// none has to be brought. Collective.
  [[nodiscard]] int layer_slots(plan::MemoryPlan const& plan) const;
  /// Device memory for gradients that wait there, out of the memory that is free now.
  [[nodiscard]] Bytes room_for_gradients(UpdateShape const& shape) const;

  /// Memory that the run wants of this node. Collective over `node`, this node's ranks.
  [[nodiscard]] launch::Needs needs(mpi::Communicator const& node,
                                    plan::MemoryPlan const& plan) const;
  /// Returns the table of this rank's data and their places, beside the limits. `spare_slots` is
  /// the number of extents that may have a second version on storage.
  [[nodiscard]] std::vector<std::string> table(plan::MemoryPlan const& plan,
                                               std::int64_t spare_slots) const;

 private:
  [[nodiscard]] Bytes free_host_memory() const;
  /// Host memory of a rank that is in the plan and already taken.
  [[nodiscard]] Bytes gathering_bytes() const;
  /// Host memory that an emulated device will still take; 0 for other devices.
  [[nodiscard]] Bytes device_bytes_to_come() const;

  config::RunConfig const& config_;
  mpi::Communicator const& comm_;
  state::ShardMap const& map_;
  device::Device const& device_;
  Room room_;
};

}  // namespace offstage::train
