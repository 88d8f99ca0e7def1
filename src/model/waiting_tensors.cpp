#include "model/waiting_tensors.hpp"

#include <utility>

#include "base/error.hpp"

namespace offstage::model {

WaitingTensors::WaitingTensors(std::vector<Memory> const& slabs, Bytes moved, int count,
                               int first_block, device::Stream& stream)
    : choice_{static_cast<int>(slabs.size()), count},
      moved_{moved},
      first_block_{first_block},
      stream_{stream} {
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
  }
  choice_.begin();
}

WaitingTensors::Slab& WaitingTensors::of(int tensor) {
  int const slab = choice_.find(tensor);
  require(slab != plan::WaitingSlabs::none, "WaitingTensors: the tensor is not there");
  return at(slab);
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
  Slab& slab = at(choice_.make(tensor));
  wait_until_left(slab);
  return slab.memory;
}

void WaitingTensors::bring(int tensor) {
  if (int const there = choice_.find(tensor); there != plan::WaitingSlabs::none) {
    choice_.hold(there);
    return;
  }
  require(leave(), "WaitingTensors: a tensor was made before it is used");
  Slab& slab = at(choice_.take(tensor));
  wait_until_left(slab);
  slab.arrived = store_->take(first_block_ + tensor, 0, moved(slab), stream_.record());
}

WaitingTensors::Memory WaitingTensors::use(int tensor) {
  bring(tensor);
  Slab& slab = of(tensor);
  if (auto const arrived = std::exchange(slab.arrived, nullptr)) {
    state::queue_behind(stream_, *arrived);
  }
  return slab.memory;
}

WaitingTensors::Memory WaitingTensors::change(int tensor) {
  Memory const memory = use(tensor);
  wait_until_left(of(tensor));
  return memory;
}

void WaitingTensors::keep(int tensor) {
  int const number = choice_.find(tensor);
  Slab& slab = of(tensor);
  if (leave()) {
    slab.left = store_->put(first_block_ + tensor, 0, moved(slab), stream_.record());
  }
  choice_.release(number);
}

void WaitingTensors::drop(int tensor) {
  choice_.release(choice_.find(tensor));
}

void WaitingTensors::give(int tensor, std::shared_ptr<device::Event> done) {
  of(tensor).left = std::move(done);
  choice_.forget(choice_.find(tensor));
}

}  // namespace offstage::model
