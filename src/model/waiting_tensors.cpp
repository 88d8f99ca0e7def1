#include "model/waiting_tensors.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace offstage::model {

WaitingTensors::WaitingTensors(std::vector<Memory> slabs, Bytes moved, int count, int first_block,
                               device::Stream& stream)
    : moved_{moved}, count_{count}, first_block_{first_block}, stream_{stream} {
  for (Memory const& memory : slabs) {
    slabs_.push_back({.memory = memory, .left = nullptr, .arrived = nullptr});
  }
}

void WaitingTensors::begin() {
  require(store_ != nullptr || !leave(), "Transformer: activations that leave need a store");
  for (Slab& slab : slabs_) {
    wait_until_left(slab);
    if (auto const arrived = std::exchange(slab.arrived, nullptr)) {
      state::queue_behind(stream_, *arrived);
    }
    slab.tensor = none;
    slab.in_use = false;
  }
}

WaitingTensors::Slab* WaitingTensors::find(int tensor) {
  require(tensor >= 0 && tensor < count_, "WaitingTensors: no such tensor");
  auto const found = std::ranges::find(slabs_, tensor, &Slab::tensor);
  return found == slabs_.end() ? nullptr : &*found;
}

WaitingTensors::Slab& WaitingTensors::take_slab(int tensor) {
  Slab* best = leave() ? nullptr : &slabs_[static_cast<std::size_t>(tensor)];
  for (Slab& slab : slabs_) {
    auto const rank = [](Slab const& each) {
      return std::pair{each.tensor != none, each.released};
    };
    if (leave() && !slab.in_use && (best == nullptr || rank(slab) < rank(*best))) {
      best = &slab;
    }
  }
  require(best != nullptr, "WaitingTensors: more tensors are in use than there are slabs");
  best->tensor = tensor;
  best->in_use = true;
  return *best;
}

void WaitingTensors::release(Slab& slab) {
  slab.in_use = false;
  slab.released = ++releases_;
}

WaitingTensors::Memory WaitingTensors::moved(Slab const& slab) const {
  return slab.memory.first(static_cast<std::size_t>(moved_));
}

void WaitingTensors::wait_until_left(Slab& slab) {
  if (auto const left = std::exchange(slab.left, nullptr)) {
    state::queue_behind(stream_, *left);
  }
}

WaitingTensors::Memory WaitingTensors::make(int tensor) {
  if (Slab* const old = find(tensor); old != nullptr && leave()) {
    old->tensor = none;
  }
  Slab& slab = take_slab(tensor);
  wait_until_left(slab);
  return slab.memory;
}

void WaitingTensors::bring(int tensor) {
  if (Slab* const there = find(tensor)) {
    there->in_use = true;
    return;
  }
  require(leave(), "WaitingTensors: a tensor was made before it is used");
  Slab& slab = take_slab(tensor);
  wait_until_left(slab);
  slab.arrived = store_->take(first_block_ + tensor, 0, moved(slab), stream_.record());
}

WaitingTensors::Memory WaitingTensors::use(int tensor) {
  bring(tensor);
  Slab& slab = *find(tensor);
  if (auto const arrived = std::exchange(slab.arrived, nullptr)) {
    state::queue_behind(stream_, *arrived);
  }
  return slab.memory;
}

WaitingTensors::Memory WaitingTensors::change(int tensor) {
  Memory const memory = use(tensor);
  wait_until_left(*find(tensor));
  return memory;
}

void WaitingTensors::keep(int tensor) {
  Slab& slab = *find(tensor);
  if (leave()) {
    slab.left = store_->put(first_block_ + tensor, 0, moved(slab), stream_.record());
  }
  release(slab);
}

void WaitingTensors::drop(int tensor) {
  release(*find(tensor));
}

void WaitingTensors::give(int tensor, std::shared_ptr<device::Event> done) {
  Slab& slab = *find(tensor);
  slab.left = std::move(done);
  slab.tensor = none;
  release(slab);
}

}  // namespace offstage::model
