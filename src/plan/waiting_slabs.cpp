#include "plan/waiting_slabs.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace offstage::plan {

WaitingSlabs::WaitingSlabs(int slabs, int tensors)
    : slabs_(static_cast<std::size_t>(slabs)), tensors_{tensors} {}

void WaitingSlabs::begin() {
  for (Slab& slab : slabs_) {
    slab.tensor = none;
    slab.in_use = false;
  }
}

int WaitingSlabs::find(int tensor) const {
  require(tensor >= 0 && tensor < tensors_, "WaitingSlabs: no such tensor");
  auto const found = std::ranges::find(slabs_, tensor, &Slab::tensor);
  return found == slabs_.end() ? none : static_cast<int>(found - slabs_.begin());
}

int WaitingSlabs::take(int tensor) {
  int best = leave() ? none : tensor;
  auto const rank = [](Slab const& slab) { return std::pair{slab.tensor != none, slab.released}; };
  for (int slab = 0; leave() && slab < slabs(); ++slab) {
    if (!at(slab).in_use && (best == none || rank(at(slab)) < rank(at(best)))) {
      best = slab;
    }
  }
  require(best != none, "WaitingSlabs: more tensors are in use than there are slabs");
  at(best).tensor = tensor;
  at(best).in_use = true;
  return best;
}

int WaitingSlabs::make(int tensor) {
  if (int const old = find(tensor); old != none && leave()) {
    at(old).tensor = none;
  }
  return take(tensor);
}

void WaitingSlabs::release(int slab) {
  at(slab).in_use = false;
  at(slab).released = ++releases_;
}

void WaitingSlabs::forget(int slab) {
  at(slab).tensor = none;
  release(slab);
}

}  // namespace offstage::plan
