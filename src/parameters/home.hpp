#pragma once

#include <cstdint>

#include "base/units.hpp"
#include "plan/workload.hpp"

namespace offstage::parameters {

using Home = plan::ParameterHome;

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

/// parameters.sharding: the time for which a layer that ranks have gathered on their devices stays
/// whole there, by the names of ZeRO's stages. The optimizer state is always sharded.
enum class Sharding {
  zero3,  ///< for one use: the next one gathers it again
  zero2,  ///< for a step: parameters are whole on each device
  zero1,  ///< for a step, and gradients are whole there until a block of micro-batches is summed
};

/// Returns whether parameters are whole on each device for a step.
[[nodiscard]] constexpr bool stay_whole(Sharding sharding) {
  return sharding != Sharding::zero3;
}
[[nodiscard]] constexpr char const* name_of(Sharding sharding) {
  return sharding == Sharding::zero3 ? "zero3" : (sharding == Sharding::zero2 ? "zero2" : "zero1");
}

/// Numbers that decide how far ahead of use layers are brought. They change times, never bits.
struct DepthDemand {
  Bytes free{};          ///< device memory without another use
  Bytes layer{};         ///< bytes of the largest whole layer that has no slot of its own
  Bytes large{};         ///< bytes of the slot for large layers (state::LayerSlotSizes)
  double link{};         ///< bytes per second to the device; 0: not known
  double storage{};      ///< bytes per second that all paths read together; 0: not known
  std::int64_t paths{};  ///< storage paths
};

/// The number of layers on the device at a time, beside a large one: as many as its memory has room
/// for, from 2 to 4. Two are needed at once by a tied head, and by a block that is computed again.
/// With four, one or two are in use and the others ahead of them; more hide nothing.
/// Source: Fuyou section 4.4: the rest of device memory is for prefetched parameters.
[[nodiscard]] int layer_slots(DepthDemand const& demand);

/// The number of extents of parameters in host memory at a time, ahead of the device, from 2 to 8.
/// One is sent, and as many are read as keep all paths at work, or more if the link is faster than
/// the paths.
/// Source: Fuyou section 4.4: the host's queue follows from the ratio of the two bandwidths.
[[nodiscard]] int host_extents(DepthDemand const& demand);

}  // namespace offstage::parameters
