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
#include "train/memory/update_shape.hpp"

namespace offstage::train {

/// Limits of a run in its nodes' memory and on its devices, as found where it starts. T is
/// numerics.dtype.
///
/// Device memory is a rank's. Where the device is emulated it is host memory too, but none that
/// tiers.host-memory counts: what of it is still to be taken is left free.
template <class T>
class RunMemory {
 public:
  /// Activations and a working copy that lives on the device, with the memory to gather it through,
  /// are taken, and nothing else yet. `node`: of this node's ranks. All but that and `link` outlive
  /// it. Collective. Errors: mpi::AgreedError.
  RunMemory(config::RunConfig const& config, mpi::Communicator const& comm,
            mpi::Communicator const& node, state::ShardMap const& map, state::RankLink const& link,
            device::Device const& device);

  [[nodiscard]] int ranks_on_node() const noexcept { return ranks_on_node_; }
  /// The limit of a node: tiers.host-memory, or the share of what is free.
  [[nodiscard]] Bytes host_limit() const noexcept { return host_limit_; }
  /// Layers that are brought to the device at a time, for which every rank's has room; 0: none has
  /// to be.
  [[nodiscard]] int parameter_slots() const noexcept { return parameter_slots_; }
  /// Device memory for gradients that wait there, of what is free now.
  [[nodiscard]] Bytes room_for_gradients(UpdateShape const& shape) const {
    return room_for_gradients(shape, 0);
  }

  /// Memory that the run wants of this node. `node`: as above. Collective over it.
  [[nodiscard]] launch::Needs needs(mpi::Communicator const& node,
                                    plan::MemoryPlan const& plan) const;
  /// Returns what of this rank lives where, beside the limits. `spare_slots`: extents that may have
  /// a second version on storage.
  [[nodiscard]] std::vector<std::string> table(plan::MemoryPlan const& plan,
                                               std::int64_t spare_slots) const;

 private:
  [[nodiscard]] Bytes free_host_memory() const;
  [[nodiscard]] int count_parameter_slots() const;
  /// Host memory of a rank that is in the plan and taken.
  [[nodiscard]] Bytes gathering_bytes() const;
  /// What will be taken of the device: by all but parameters on their way, and with them, as far as
  /// it is an emulated device's and therefore host memory.
  [[nodiscard]] Bytes device_bytes_beside() const;
  [[nodiscard]] Bytes device_bytes_to_come() const;
  /// When `taken` more is in use than now.
  [[nodiscard]] Bytes room_for_gradients(UpdateShape const& shape, Bytes taken) const;

  config::RunConfig const& config_;
  mpi::Communicator const& comm_;
  state::ShardMap const& map_;
  state::Route route_;
  Bytes link_bytes_;  ///< of the device, as planned
  device::Device const& device_;
  int ranks_on_node_;
  int parameter_slots_;
  Bytes host_limit_;
};

}  // namespace offstage::train
