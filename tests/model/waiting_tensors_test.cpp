#include "model/waiting_tensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "device/device.hpp"
#include "model/model_fixture.hpp"
#include "model/slab.hpp"
#include "model/workspace.hpp"
#include "state/exchange.hpp"

namespace offstage::model {
namespace {

using namespace std::chrono_literals;

/// A store that has read all that it is given at one event.
class OneEvent final : public state::ActivationStore {
 public:
  explicit OneEvent(std::shared_ptr<device::Event> event) : event_{std::move(event)} {}
  void open() override {}
  [[nodiscard]] std::shared_ptr<device::Event> put(
      int /*block*/, int /*part*/, std::span<std::byte const> /*memory*/,
      std::shared_ptr<device::Event> const& /*made*/) override {
    return event_;
  }
  [[nodiscard]] std::shared_ptr<device::Event> take(
      int /*block*/, int /*part*/, std::span<std::byte> /*memory*/,
      std::shared_ptr<device::Event> const& freed) override {
    return freed;
  }
  [[nodiscard]] state::ActivationTraffic traffic() const override { return {}; }

 private:
  std::shared_ptr<device::Event> event_;
};

TEST(WaitingTensors, AreInOneAllocation) {
  auto const device = device::make_host_device(0);
  constexpr int count = 5;
  auto const shape = test::tiny_shape(true);
  auto const dims = dims_of(shape, {.batch = 1, .sequence = 5});
  WorkspaceDemand const demand{.ring = {1, {recomputed_block}, 1},
                               .layer_elements = 4096,
                               .attention_elements = 0,
                               .tied_elements = 70,
                               .vertical = {.micro_batches = 3, .tensors = count, .tables = count}};
  Workspace<float> const memory{dims, demand, *device};
  for (auto const* all : {&memory.tensors, &memory.tables}) {
    ASSERT_EQ(all->size(), count);
    auto const bytes = Slab::aligned(static_cast<Bytes>(all->front().size_bytes()));
    for (std::size_t i = 1; i < all->size(); ++i) {
      EXPECT_EQ((*all)[i].data(), (*all)[i - 1].data() + bytes / Bytes{sizeof(float)});
    }
  }
}

TEST(WaitingTensors, MayBeReadButNotChangedWhileTheyLeave) {
  auto const device = device::make_host_device(0);
  auto const stream = device->make_stream("model");
  auto const others = device->make_stream("others");
  std::promise<void> sign;
  others->enqueue([go_on = sign.get_future().share()] { go_on.wait(); });
  OneEvent store{others->record()};
  std::vector<std::byte> memory(2);
  WaitingTensors tensors{{std::span{memory}.first(1), std::span{memory}.subspan(1)},
                         {.tensors = 3, .slabs = 2},
                         1,
                         1,
                         *stream};
  tensors.set_store(store);
  tensors.begin();
  auto const made = tensors.make(0);
  tensors.keep(0);
  EXPECT_EQ(tensors.use(0).data(), made.data());
  stream->synchronize();
  tensors.drop(0);
  EXPECT_EQ(tensors.change(0).data(), made.data());
  std::atomic<bool> changed = false;
  stream->enqueue([&] { changed = true; });
  std::this_thread::sleep_for(20ms);  // the stream alone would have come so far meanwhile
  EXPECT_FALSE(changed);
  sign.set_value();
  stream->synchronize();
  EXPECT_TRUE(changed);
}

/// Notes what is moved. The second piece arrives, and has left, at an event; the others at once.
class Pieces final : public state::ActivationStore {
 public:
  Pieces(std::shared_ptr<device::Event> now, std::shared_ptr<device::Event> later)
      : now_{std::move(now)}, later_{std::move(later)} {}
  void open() override {}
  [[nodiscard]] std::shared_ptr<device::Event> put(
      int block, int /*part*/, std::span<std::byte const> memory,
      std::shared_ptr<device::Event> const& /*made*/) override {
    moved.emplace_back(block, memory.size());
    return block % 3 == 1 ? later_ : now_;
  }
  [[nodiscard]] std::shared_ptr<device::Event> take(
      int block, int part, std::span<std::byte> memory,
      std::shared_ptr<device::Event> const& freed) override {
    return put(block, part, memory, freed);
  }
  [[nodiscard]] state::ActivationTraffic traffic() const override { return {}; }

  std::vector<std::pair<int, std::size_t>> moved;

 private:
  std::shared_ptr<device::Event> now_, later_;
};

TEST(WaitingTensors, LeaveInPiecesAndAreThereWhenAllPiecesAre) {
  auto const device = device::make_host_device(0);
  auto const stream = device->make_stream("model");
  auto const others = device->make_stream("others");
  auto const now = others->record();
  std::promise<void> sign;
  others->enqueue([go_on = sign.get_future().share()] { go_on.wait(); });
  Pieces store{now, others->record()};
  std::vector<std::byte> memory(7);
  plan::WaitingGroup const group{.tensors = 4, .slabs = 1, .pieces = 3, .first_block = 30};
  WaitingTensors tensors{{std::span{memory}}, group, 5, 2, *stream};
  tensors.set_store(store);
  tensors.begin();
  (void)tensors.make(1);
  tensors.keep(1);
  using testing::ElementsAre;
  using testing::Pair;
  EXPECT_THAT(store.moved, ElementsAre(Pair(33, 2U), Pair(34, 2U), Pair(35, 1U)));
  store.moved.clear();
  (void)tensors.make(2);
  std::atomic<bool> made = false;
  stream->enqueue([&] { made = true; });
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(made) << "a piece of the tensor before is still there";
  tensors.drop(2);
  (void)tensors.use(1);
  EXPECT_THAT(store.moved, ElementsAre(Pair(33, 2U), Pair(34, 2U), Pair(35, 1U)));
  sign.set_value();
  stream->synchronize();
}

TEST(WaitingTensors, OfWhichTheLastOnesHaveMemoryOfTheirOwnNeverLeave) {
  auto const device = device::make_host_device(0);
  auto const stream = device->make_stream("model");
  auto const now = stream->record();
  Pieces store{now, now};
  std::vector<std::byte> memory(2);
  std::span const all{memory};
  plan::WaitingGroup const group{.tensors = 4, .slabs = 2, .staying = 1};
  WaitingTensors tensors{{all.first(1), all.subspan(1)}, group, 1, 1, *stream};
  tensors.set_store(store);
  tensors.begin();
  auto const last = tensors.make(3);
  tensors.keep(3);
  EXPECT_TRUE(store.moved.empty());
  for (int const tensor : {0, 1, 2}) {
    EXPECT_NE(tensors.make(tensor).data(), last.data());
    tensors.keep(tensor);
  }
  EXPECT_EQ(store.moved.size(), 3U);
  tensors.bring(3);
  EXPECT_EQ(tensors.change(3).data(), last.data());
  EXPECT_EQ(store.moved.size(), 3U) << "it was there";
}

}  // namespace
}  // namespace offstage::model
