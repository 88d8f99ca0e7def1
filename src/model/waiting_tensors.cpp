#include "model/waiting_tensors.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace offstage::model {

WaitingTensors::WaitingTensors(std::vector<Memory> const& slabs, plan::WaitingGroup const& group,
                               Bytes moved, Bytes piece, device::Stream& stream)
    : group_{group}, choice_{group}, moved_{moved}, piece_{piece}, stream_{stream} {
  require(std::ssize(slabs) >= group.slabs, "WaitingTensors: each slab has memory");
  require(piece > 0 && ceil_div(moved, piece) <= group.pieces,
          "WaitingTensors: each piece has a block");
  for (Memory const& memory : slabs) {
    slabs_.push_back({.memory = memory, .left = {}, .arrived = {}});
  }
}

void WaitingTensors::begin() {
  require(store_ != nullptr || !leave(), "Transformer: activations that leave need a store");
  for (Slab& slab : slabs_) {
    wait_for(slab.left);
    wait_for(slab.arrived);
  }
  choice_.begin();
}

WaitingTensors::Slab& WaitingTensors::of(int tensor) {
  int const slab = choice_.find(tensor);
  require(slab != plan::WaitingSlabs::none, "WaitingTensors: the tensor is not there");
  return at(slab);
}

template <class Move>
WaitingTensors::Events WaitingTensors::move_pieces(int tensor, Slab const& slab,
                                                   Move const& move) const {
  Events events;
  int block = group_.block_of(tensor);
  for (Bytes begin = 0; begin < moved_; begin += piece_) {
    Bytes const size = std::min(piece_, moved_ - begin);
    events.push_back(move(block++, slab.memory.subspan(static_cast<std::size_t>(begin),
                                                       static_cast<std::size_t>(size))));
  }
  return events;
}

void WaitingTensors::wait_for(Events& events) {
  for (auto const& event : std::exchange(events, {})) {
    state::queue_behind(stream_, *event);
  }
}

WaitingTensors::Memory WaitingTensors::make(int tensor) {
  Slab& slab = at(choice_.make(tensor));
  wait_for(slab.left);
  return slab.memory;
}

void WaitingTensors::bring(int tensor) {
  if (int const there = choice_.find(tensor); there != plan::WaitingSlabs::none) {
    choice_.hold(there);
    return;
  }
  require(choice_.leaves(tensor), "WaitingTensors: a tensor was made before it is used");
  Slab& slab = at(choice_.take(tensor));
  wait_for(slab.left);
  auto const freed = stream_.record();
  slab.arrived = move_pieces(tensor, slab, [&](int block, Memory memory) {
    return store_->take(block, 0, memory, freed);
  });
}

WaitingTensors::Memory WaitingTensors::use(int tensor) {
  bring(tensor);
  Slab& slab = of(tensor);
  wait_for(slab.arrived);
  return slab.memory;
}

WaitingTensors::Memory WaitingTensors::change(int tensor) {
  Memory const memory = use(tensor);
  wait_for(of(tensor).left);
  return memory;
}

void WaitingTensors::keep(int tensor) {
  int const number = choice_.find(tensor);
  Slab& slab = of(tensor);
  if (choice_.leaves(tensor)) {
    auto const made = stream_.record();
    slab.left = move_pieces(tensor, slab, [&](int block, Memory memory) {
      return store_->put(block, 0, memory, made);
    });
  }
  choice_.release(number);
}

void WaitingTensors::drop(int tensor) {
  choice_.release(choice_.find(tensor));
}

void WaitingTensors::give(int tensor, std::shared_ptr<device::Event> done) {
  of(tensor).left = done ? Events{std::move(done)} : Events{};
  choice_.forget(choice_.find(tensor));
}

}  // namespace offstage::model
