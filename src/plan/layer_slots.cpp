#include "plan/layer_slots.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.hpp"

namespace offstage::plan {

LayerSlots::LayerSlots(int slots, std::vector<int> large) : large_{std::move(large)} {
  require(slots >= 2, "LayerSlots: two layers may be held at a time");
  slots_.resize(static_cast<std::size_t>(slots) + 1);
}

LayerSlots::Use LayerSlots::add(int layer) {
  std::size_t const usual = slots_.size() - 1;
  bool const large = std::ranges::find(large_, layer) != large_.end();
  auto const slots = large ? std::span{slots_}.subspan(usual) : std::span{slots_}.first(usual);
  auto chosen = std::ranges::find(slots, layer, &Slot::layer);
  bool const fill = chosen == slots.end();
  if (fill) {
    chosen = std::ranges::min_element(slots, {}, &Slot::last_use);
  }
  Use const use{layer, static_cast<int>(&*chosen - slots_.data()), fill, chosen->last_use};
  *chosen = {layer, uses_++};
  return use;
}

void LayerSlots::forget() {
  for (Slot& slot : slots_) {
    slot.layer = -1;
  }
}

}  // namespace offstage::plan
