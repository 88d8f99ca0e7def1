#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "plan/split.hpp"
#include "train/offload/lock_choice.hpp"

namespace offstage::train {

/// This rank's slots on one storage path.
struct SlotFacts {
  std::string what;  ///< their contents: "state", "gradient"
  std::int64_t slots{};
  Bytes slot_bytes{};
};

/// Facts of one storage path beside its tiers.path.
struct PathFacts {
  plan::PathRate rate{};           ///< as given or measured
  std::vector<SlotFacts> slots{};  ///< empty: all extents stay in host memory
  Bytes needed{};                  ///< bytes of all slots there of this node's ranks
  Bytes free{};                    ///< free bytes before the slots were allocated
  LockChoice lock{};               ///< whether the node's processes take turns on it
};

}  // namespace offstage::train
