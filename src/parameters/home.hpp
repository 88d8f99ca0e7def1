#pragma once

#include <cstdint>

#include "base/units.hpp"

namespace offstage::parameters {

/// parameters.home: where the 16-bit working copy of a rank's shard lives.
enum class Home {
  device,   ///< in device memory; layers are used where they are, or gathered from the ranks
  host,     ///< in host memory, streamed to the device layer by layer
  storage,  ///< on the storage paths, likewise, through a few extents in host memory
  node,     ///< of all shards, in host memory that the ranks of a node share
};

[[nodiscard]] constexpr char const* name_of(Home home) {
  switch (home) {
    case Home::host:
      return "host";
    case Home::storage:
      return "storage";
    case Home::node:
      return "node";
    case Home::device:
      break;
  }
  return "device";
}

/// parameters.sharding: how long a layer that ranks have gathered on their devices stays whole
/// there, by the names of ZeRO's stages. The optimizer state is always sharded.
enum class Sharding {
  zero3,  ///< for one use: the next one gathers it again
  zero2,  ///< for a step: parameters are whole on each device
  zero1,  ///< likewise, and gradients are whole there until a block of micro-batches is summed
};

/// Whether parameters are whole on each device for a step.
[[nodiscard]] constexpr bool stay_whole(Sharding sharding) {
  return sharding != Sharding::zero3;
}
[[nodiscard]] constexpr char const* name_of(Sharding sharding) {
  return sharding == Sharding::zero3 ? "zero3" : (sharding == Sharding::zero2 ? "zero2" : "zero1");
}

/// What decides how far layers are brought ahead of use. It changes times, never bits.
struct DepthDemand {
  Bytes free{};          ///< device memory that nothing else wants
  Bytes layer{};         ///< of the largest layer that has no slot of its own, whole
  Bytes large{};         ///< of the slot for layers that have (state::SlotSizes)
  double link{};         ///< bytes per second to the device; 0: not known
  double storage{};      ///< bytes per second that all paths together read; 0: not known
  std::int64_t paths{};  ///< storage paths
};

/// Layers on the device at a time, beside a large one: as many as its memory has room for, but from
/// 2 (a tied head needs two at once, and a block where it is computed again) to 4 (one or two in
/// use, the others ahead of them; more hide nothing).
/// Source: Fuyou section 4.4: device memory that is left is for what is prefetched.
[[nodiscard]] int device_slots(DepthDemand const& demand);

/// Extents of parameters in host memory at a time, ahead of the device: one being sent, and as many being
/// read as keep all paths at work, or more where the link is faster than they are, from 2 to 8 in all.
/// Source: Fuyou section 4.4: the host's queue follows from the ratio of the two bandwidths.
[[nodiscard]] int host_extents(DepthDemand const& demand);

}  // namespace offstage::parameters
