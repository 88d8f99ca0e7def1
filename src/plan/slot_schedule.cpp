#include "plan/slot_schedule.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace offstage::plan {

SlotSchedule::SlotSchedule(int slots) {
  require(slots >= 2, "SlotSchedule: two layers may be held at a time");
  slots_.resize(static_cast<std::size_t>(slots));
}

SlotSchedule::Use SlotSchedule::add(int layer) {
  auto chosen = std::ranges::find(slots_, layer, &Slot::layer);
  bool const fill = chosen == slots_.end();
  if (fill) {
    chosen = std::ranges::min_element(slots_, {}, &Slot::last_use);
  }
  Use const use{layer, static_cast<int>(chosen - slots_.begin()), fill, chosen->last_use};
  *chosen = {layer, uses_++};
  return use;
}

void SlotSchedule::forget() {
  for (Slot& slot : slots_) {
    slot.layer = -1;
  }
}

}  // namespace offstage::plan
