#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "plan/split.hpp"
#include "train/offload/lock_choice.hpp"

namespace offstage::train {

/// Slots on one storage path, this rank.
struct SlotFacts {
  std::string what;  ///< they are for: "state", "gradient"
  std::int64_t slots{};
  Bytes slot_bytes{};
};

/// Facts of one storage path beside its tiers.path.
struct PathFacts {
  plan::PathRate rate{};           ///< as given or measured
  std::vector<SlotFacts> slots{};  ///< none: all stays in host memory
  Bytes needed{};                  ///< all slots there of the ranks of this node
  Bytes free{};                    ///< before they were allocated
  LockChoice lock{};               ///< how the node's processes share it
};

}  // namespace offstage::train
