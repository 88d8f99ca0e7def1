#pragma once

#include <cstdint>
#include <vector>

namespace offstage::plan {

/// Which of a few slots holds a layer for each of its uses, decided as soon as the use is known: so
/// it depends on the order of uses alone, never on what is done when, and is the same on all ranks.
///
/// A layer that still lies in a slot is used there again (as the last ones of a forward are, when
/// backward begins); else it takes the slot whose last use comes first. Large layers share one slot
/// that is theirs alone.
class SlotSchedule {
 public:
  struct Use {
    int layer{};
    int slot{};
    bool fill{};           ///< the layer has to be brought
    std::int64_t after{};  ///< the use that must have ended before that; -1: none
  };

  /// `slots`: of usual layers, at least 2, for with fewer no layer could be held beside another.
  /// `large`: the layers that use slot number `slots` instead; two of them are never held at a
  /// time.
  explicit SlotSchedule(int slots, std::vector<int> large = {});

  /// The next use; they count from 0 and go on counting after forget.
  [[nodiscard]] Use add(int layer);
  /// Forgets what lies in the slots: it is no longer what a use wants.
  void forget();

 private:
  struct Slot {
    int layer = -1;
    std::int64_t last_use = -1;
  };
  std::vector<Slot> slots_;  ///< the last one is for large layers
  std::vector<int> large_;
  std::int64_t uses_ = 0;
};

}  // namespace offstage::plan
