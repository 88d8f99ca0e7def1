#include "plan/simulated_tensors.hpp"

#include <algorithm>
#include <utility>

namespace offstage::plan {
namespace {

/// The settings of the extents. If all have a place in host memory, nothing goes to storage and
/// nothing waits for a buffer.
SimulatedExtents::Settings extents_of(SimulatedActivations::Settings const& settings) {
  bool const stored = settings.storage && settings.cached < std::ssize(settings.bytes);
  return {.name = "activation",
          .bytes = settings.bytes,
          .buffers = stored ? settings.writers + settings.readers : 0,
          .cached = settings.cached,
          .weights = settings.weights,
          .sharer = settings.sharer};
}

}  // namespace

SimulatedActivations::SimulatedActivations(VirtualTime& time, SimulatedMachine& machine,
                                           Settings const& settings)
    : time_{time},
      machine_{machine},
      bytes_{settings.bytes},
      blocks_{settings.blocks},
      extents_{time, machine, extents_of(settings)},
      writers_{time, settings.storage ? std::max(1, settings.writers) : 1},
      readers_{time, settings.storage ? std::max(1, settings.readers) : 1},
      there_(bytes_.size()) {}

Task SimulatedActivations::put(std::int64_t key, std::shared_ptr<Point> left) {
  auto const index = static_cast<std::size_t>(key);
  auto const there = std::make_shared<Point>(time_);
  there_[index] = there;
  co_await writers_.take();
  co_await extents_.create(key);
  co_await machine_.to_host(bytes_[index], {"activations out", "block", blocks_[index]});
  left->set();
  co_await extents_.commit(key);
  there->set();
  writers_.give();
}

Task SimulatedActivations::take(std::int64_t key, Point* freed, std::shared_ptr<Point> arrived) {
  auto const index = static_cast<std::size_t>(key);
  auto const there = there_[index];
  co_await readers_.take();
  co_await *there;
  co_await extents_.fetch(key);
  if (freed != nullptr) {
    co_await *freed;
  }
  co_await machine_.to_device(bytes_[index], {"activations back", "block", blocks_[index]});
  arrived->set();
  extents_.discard(key);
  readers_.give();
}

SimulatedTensors::SimulatedTensors(VirtualTime& time, SimulatedActivations& store,
                                   WaitingGroup const& group)
    : time_{time},
      store_{store},
      group_{group},
      choice_{group},
      slabs_(static_cast<std::size_t>(group.slabs)) {}

Task SimulatedTensors::wait(Points points) {
  for (auto const& point : points) {
    co_await *point;
  }
}

template <class Move>
SimulatedTensors::Points SimulatedTensors::move_pieces(int tensor, Move const& move) {
  Points points;
  int const first = group_.block_of(tensor);
  for (int key = first; key < first + group_.pieces; ++key) {
    time_.start(move(key, points.emplace_back(std::make_shared<Point>(time_))));
  }
  return points;
}

Task SimulatedTensors::make(int tensor) {
  Slab& slab = at(choice_.make(tensor));
  co_await wait(std::exchange(slab.left, {}));
}

Task SimulatedTensors::bring(int tensor) {
  if (int const there = choice_.find(tensor); there != WaitingSlabs::none) {
    choice_.hold(there);
    co_return;
  }
  Slab& slab = at(choice_.take(tensor));
  co_await wait(std::exchange(slab.left, {}));
  slab.arrived = move_pieces(tensor, [this](std::int64_t key, std::shared_ptr<Point> arrived) {
    return store_.take(key, nullptr, std::move(arrived));
  });
}

Task SimulatedTensors::use(int tensor) {
  co_await bring(tensor);
  co_await wait(std::exchange(at(choice_.find(tensor)).arrived, {}));
}

Task SimulatedTensors::change(int tensor) {
  co_await use(tensor);
  co_await wait(std::exchange(at(choice_.find(tensor)).left, {}));
}

void SimulatedTensors::keep(int tensor) {
  int const slab = choice_.find(tensor);
  if (choice_.leaves(tensor)) {
    at(slab).left = move_pieces(tensor, [this](std::int64_t key, std::shared_ptr<Point> left) {
      return store_.put(key, std::move(left));
    });
  }
  choice_.release(slab);
}

void SimulatedTensors::drop(int tensor) {
  choice_.release(choice_.find(tensor));
}

void SimulatedTensors::give(int tensor, std::shared_ptr<Point> done) {
  int const slab = choice_.find(tensor);
  at(slab).left = {std::move(done)};
  choice_.forget(slab);
}

}  // namespace offstage::plan
