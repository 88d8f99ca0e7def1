#include "plan/waiting_slabs.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace offstage::plan {

WaitingSlabs::WaitingSlabs(WaitingGroup const& group)
    : slabs_(static_cast<std::size_t>(group.slabs)),
      slab_of_(static_cast<std::size_t>(group.tensors), none),
      in_turn_{leave() ? group.slabs - group.staying : 0},
      first_own_{leave() ? group.tensors - group.staying : 0} {
  require(in_turn_ >= 0, "WaitingSlabs: what stays has slabs");
}

void WaitingSlabs::begin() {
  for (Slab& slab : slabs_) {
    slab.tensor = none;
    slab.in_use = false;
  }
  std::ranges::fill(slab_of_, none);
}

int WaitingSlabs::find(int tensor) const {
  require(tensor >= 0 && std::cmp_less(tensor, slab_of_.size()), "WaitingSlabs: no such tensor");
  return slab_of_[static_cast<std::size_t>(tensor)];
}

int WaitingSlabs::take(int tensor) {
  int best = leaves(tensor) ? none : in_turn_ + tensor - first_own_;
  auto const rank = [](Slab const& slab) { return std::pair{slab.tensor != none, slab.released}; };
  for (int slab = 0; leaves(tensor) && slab < in_turn_; ++slab) {
    if (!at(slab).in_use && (best == none || rank(at(slab)) < rank(at(best)))) {
      best = slab;
    }
  }
  require(best != none, "WaitingSlabs: more tensors are in use than there are slabs");
  empty(best);
  at(best).tensor = tensor;
  at(best).in_use = true;
  slab_of_[static_cast<std::size_t>(tensor)] = best;
  return best;
}

int WaitingSlabs::make(int tensor) {
  if (int const old = find(tensor); old != none && leaves(tensor)) {
    empty(old);
  }
  return take(tensor);
}

void WaitingSlabs::release(int slab) {
  at(slab).in_use = false;
  at(slab).released = ++releases_;
}

void WaitingSlabs::forget(int slab) {
  empty(slab);
  release(slab);
}

void WaitingSlabs::empty(int slab) {
  if (int const old = std::exchange(at(slab).tensor, none); old != none) {
    slab_of_[static_cast<std::size_t>(old)] = none;
  }
}

}  // namespace offstage::plan
