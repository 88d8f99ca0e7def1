#pragma once

#include <cstdint>
#include <vector>

namespace offstage::plan {

/// Decides which of a few slots holds a layer for each of its uses, as soon as the use is known. So
/// the choice depends on the order of uses alone, never on times, and is the same on all ranks.
///
/// A layer that is still in a slot is used there again, as the last ones of a forward are when
/// backward begins. Otherwise it takes the slot whose last use comes first. Large layers use one
/// slot that is theirs alone.
class LayerSlots {
 public:
  struct Use {
    int layer{};
    int slot{};
    bool fill{};           ///< the layer has to be brought to the slot
    std::int64_t after{};  ///< the use that must have ended before it is brought; -1: none
  };

  /// `slots` is the number of slots for usual layers. It is at least 2, for with fewer no layer
  /// could be held beside another. `large` are the layers that use slot number `slots` instead; two
  /// of them are never held at a time.
  explicit LayerSlots(int slots, std::vector<int> large = {});

  /// Adds the next use. Uses count from 0, also across forget().
  [[nodiscard]] Use add(int layer);
  /// Forgets the layers in the slots, because later uses need them brought again.
  void forget();

 private:
  struct Slot {
    int layer = -1;
    std::int64_t last_use = -1;
  };
  std::vector<Slot> slots_;  ///< the last slot is for large layers
  std::vector<int> large_;
  std::int64_t uses_ = 0;
};

}  // namespace offstage::plan
