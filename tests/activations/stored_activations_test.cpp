#include "activations/stored_activations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "device/shuffled_device.hpp"
#include "model/model_fixture.hpp"
#include "state/exchange.hpp"
#include "tiers/virtual_support.hpp"
#include "update/memory_tiers.hpp"

namespace offstage::activations {
namespace {

constexpr Bytes stored_part_size = 6000;
constexpr int blocks = 6;

/// Some blocks' two parts each; of block 2 nothing leaves.
std::vector<state::LeavingPart> stored_parts() {
  std::vector<state::LeavingPart> parts;
  for (int block = 0; block < blocks; ++block) {
    if (block != 2) {
      parts.push_back({block, 0, stored_part_size});
      parts.push_back({block, 3, stored_part_size + 77});
    }
  }
  return parts;
}

std::byte stored_fill(int round, state::LeavingPart const& part) {
  return static_cast<std::byte>(1 + round * 60 + part.block * 8 + part.part);
}

/// Puts all parts of a micro-batch from one device memory, and takes them back to it.
class Passes {
 public:
  Passes(device::Device& device, state::ActivationStore& store)
      : store_{store},
        model_{device.make_stream("model")},
        memory_{device.allocate(stored_part_size + 77, "a part")} {}
  ~Passes() { model_->synchronize(); }
  Passes(Passes const&) = delete;
  Passes& operator=(Passes const&) = delete;

  void put(int round) {
    store_.open();
    for (auto const& part : stored_parts()) {
      auto const there = memory_of(part);
      model_->enqueue([=] { std::ranges::fill(there, stored_fill(round, part)); });
      state::queue_behind(*model_, *store_.put(part.block, part.part, there, model_->record()));
      model_->enqueue([=] { std::ranges::fill(there, std::byte{0xFF}); });
    }
  }
  void take(int round) {
    auto parts = stored_parts();
    std::ranges::stable_sort(parts, std::ranges::greater{}, &state::LeavingPart::block);
    for (auto const& part : parts) {
      auto const there = memory_of(part);
      model_->enqueue([=] { std::ranges::fill(there, std::byte{0xEE}); });
      state::queue_behind(*model_, *store_.take(part.block, part.part, there, model_->record()));
      model_->enqueue([=, this] {
        wrong_ += std::ranges::count(there, stored_fill(round, part)) == part.bytes ? 0 : 1;
      });
    }
    model_->synchronize();
    EXPECT_EQ(wrong_, 0) << "in round " << round;
  }

 private:
  [[nodiscard]] std::span<std::byte> memory_of(state::LeavingPart const& part) const {
    return memory_.as<std::byte>().first(static_cast<std::size_t>(part.bytes));
  }
  state::ActivationStore& store_;
  std::unique_ptr<device::Stream> model_;
  device::Buffer memory_;
  std::atomic<int> wrong_ = 0;
};

// As a vertical schedule does: to and fro over the layers, each tensor twice, and some put again.
TEST(StoredActivations, OnDemandGiveWhatWasPutLastAsOftenAsItIsTaken) {
  constexpr int tensors = 12;
  std::vector<state::LeavingPart> parts;
  for (int tensor = 0; tensor < tensors; ++tensor) {
    parts.push_back({tensor, 0, stored_part_size});
  }
  std::uint64_t seed = 0;
  for (StoredSettings const workers : {StoredSettings{1, 1, true}, {3, 2, true}}) {
    for (std::int64_t const cached : {0, 3}) {
      tiers::VirtualFixture storage;
      storage.add_paths(2);
      storage.settings.buffers = workers.buffers();
      storage.settings.cached = cached;
      auto const tiers = storage.make(StoredActivations::extents(parts));
      device::ShuffledDevice device{++seed};
      StoredActivations store{parts, *tiers, device, workers};
      auto const model = device.make_stream("model");
      auto const memory = device.allocate(stored_part_size, "a part");
      auto const there = memory.as<std::byte>();
      std::atomic<int> wrong = 0;
      auto const put = [&](int tensor, int value) {
        model->enqueue([=] { std::ranges::fill(there, static_cast<std::byte>(value)); });
        state::queue_behind(*model, *store.put(tensor, 0, there, model->record()));
        model->enqueue([=] { std::ranges::fill(there, std::byte{0xFF}); });
      };
      auto const take = [&](int tensor, int value) {
        state::queue_behind(*model, *store.take(tensor, 0, there, model->record()));
        model->enqueue([=, &wrong] {
          wrong +=
              std::ranges::count(there, static_cast<std::byte>(value)) == stored_part_size ? 0 : 1;
        });
      };
      for (int step = 0; step < 3; ++step) {
        store.open();
        for (int tensor = 0; tensor < tensors; ++tensor) {
          put(tensor, 20 * step + tensor);
          take(tensor / 2, 20 * step + tensor / 2);
        }
        for (int tensor = tensors - 1; tensor >= 0; --tensor) {
          take(tensor, 20 * step + tensor);
          put(tensor, 100 + tensor);
          take(tensor, 100 + tensor);
        }
      }
      model->synchronize();
      EXPECT_EQ(wrong, 0);
      store.open();
      EXPECT_THROW((void)store.take(0, 0, there, model->record()), PreconditionError);
    }
  }
}

// Many writers, and nothing between two puts of a tensor but the model's own order.
TEST(StoredActivations, OnDemandGiveTheLastOfSeveralPutsWhateverTheWorkers) {
  std::vector<state::LeavingPart> const parts{{0, 0, stored_part_size}, {1, 0, stored_part_size}};
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    StoredSettings const workers{4, 3, true};
    tiers::VirtualFixture storage;
    storage.add_paths(2);
    storage.settings.buffers = workers.buffers();
    storage.settings.cached = 0;
    auto const tiers = storage.make(StoredActivations::extents(parts));
    device::ShuffledDevice device{seed};
    StoredActivations store{parts, *tiers, device, workers};
    auto const model = device.make_stream("model");
    constexpr int puts = 4;
    auto const memory = device.allocate(puts * stored_part_size, "values");
    auto const back = device.allocate(stored_part_size, "what comes back");
    auto const value = [&](int put) {
      return memory.as<std::byte>().subspan(static_cast<std::size_t>(put * stored_part_size),
                                            static_cast<std::size_t>(stored_part_size));
    };
    std::atomic<int> wrong = 0;
    store.open();
    for (int put = 0; put < puts; ++put) {
      model->enqueue([=] { std::ranges::fill(value(put), static_cast<std::byte>(put + 1)); });
    }
    std::vector<std::shared_ptr<device::Event>> points;
    for (int put = 0; put < puts; ++put) {
      points.push_back(store.put(put % 2, 0, value(put), model->record()));
    }
    for (int tensor = 0; tensor < 2; ++tensor) {
      state::queue_behind(*model, *store.take(tensor, 0, back.as<std::byte>(), model->record()));
      model->enqueue([there = back.as<std::byte>(), tensor, &wrong] {
        auto const last = static_cast<std::byte>(puts - 1 + tensor);
        wrong += std::ranges::count(there, last) == stored_part_size ? 0 : 1;
      });
    }
    model->synchronize();
    EXPECT_EQ(wrong, 0) << "seed " << seed;
  }
}

// From a buffer of each worker and nothing else in host memory, to all of it.
TEST(StoredActivations, BringBackWhatWasPutWhateverTheWorkersAndTheCache) {
  std::uint64_t seed = 0;
  for (StoredSettings const workers : {StoredSettings{1, 1}, {2, 1}, {1, 2}, {3, 3}}) {
    for (std::int64_t const cached : {0, 2, blocks - 1}) {
      tiers::VirtualFixture storage;
      storage.add_paths(2);
      storage.settings.buffers = workers.buffers();
      storage.settings.cached = cached;
      auto const tiers = storage.make(StoredActivations::extents(stored_parts()));
      device::ShuffledDevice device{++seed};
      StoredActivations store{stored_parts(), *tiers, device, workers};
      Passes passes{device, store};
      for (int round = 0; round < 3; ++round) {
        passes.put(round);
        passes.take(round);
      }
      passes.put(3);  // a forward whose backward does not come
      passes.put(0);
      passes.take(0);
      Bytes const all = 5 * (2 * stored_part_size + 77);
      EXPECT_EQ(store.traffic().out, 5 * all);
      EXPECT_EQ(store.traffic().back, 4 * all);
    }
  }
}

// Host first: of a micro-batch those that come back last go to storage, each once, and are read
// once.
TEST(StoredActivations, LeaveTheLastBlocksInHostMemory) {
  update::MemoryTiers counted{StoredActivations::extents(stored_parts()), {.buffers = 2}};
  device::ShuffledDevice device{1};
  StoredActivations store{stored_parts(), counted, device, {}};
  Passes passes{device, store};
  passes.put(0);
  passes.take(0);
  using Call = update::MemoryTiers::Call;
  EXPECT_EQ(counted.keys_of(Call::commit), (std::vector<tiers::Key>{0, 1, 2, 3, 4}));
  EXPECT_EQ(counted.keys_of(Call::fetch), (std::vector<tiers::Key>{4, 3, 2, 1, 0}));

  tiers::VirtualFixture storage;
  storage.add_paths(1);
  storage.settings.buffers = 2;
  storage.settings.cached = 3;
  auto const tiers = storage.make(StoredActivations::extents(stored_parts()));
  StoredActivations stored{stored_parts(), *tiers, device, {}};
  Passes again{device, stored};
  for (int round = 0; round < 3; ++round) {
    auto const before = tiers->traffic();
    again.put(round);
    again.take(round);
    auto const after = tiers->traffic();
    EXPECT_EQ(after.misses - before.misses, 2) << "two of five blocks have no place";
    EXPECT_EQ(after.write_bytes() - before.write_bytes(), 2 * 4 * 4096 * Bytes{1});
  }
}

TEST(StoredActivations, CountHowLongTheModelWaitsForThem) {
  constexpr std::chrono::milliseconds late{30};
  update::MemoryTiers slow{StoredActivations::extents(stored_parts()),
                           {.buffers = 2, .hook = [&](update::MemoryTiers::Event event) {
                              if (event.call == update::MemoryTiers::Call::fetch) {
                                std::this_thread::sleep_for(late);
                              }
                            }}};
  auto const device = device::make_host_device(0);
  StoredActivations store{stored_parts(), slow, *device, {}};
  Passes passes{*device, store};
  passes.put(0);
  Seconds const before = store.traffic().waited;
  passes.take(0);
  // Five come one after another; the model may be late itself now and then.
  EXPECT_GE(store.traffic().waited - before, Seconds{late});
}

TEST(StoredActivations, AreAnExtentForEachBlock) {
  EXPECT_EQ(StoredActivations::extents(stored_parts()), std::vector<Bytes>(5, 4 * 4096));
}

void expect_failure(update::MemoryTiers::Call call) {
  std::atomic<int> calls = 0;
  update::MemoryTiers failing{StoredActivations::extents(stored_parts()),
                              {.buffers = 2, .hook = [&](update::MemoryTiers::Event event) {
                                 if (event.call == call && ++calls == 3) {
                                   throw IoError{"the path is gone"};
                                 }
                               }}};
  auto const device = device::make_host_device(0);
  StoredActivations store{stored_parts(), failing, *device, {}};
  Passes passes{*device, store};
  auto const step = [&] {
    passes.put(0);
    passes.take(0);
  };
  EXPECT_THROW(step(), IoError);
  EXPECT_THROW(store.open(), IoError) << "and so does all that comes";
}

TEST(StoredActivations, TellWhoWaitsWhatAWorkerFailedWith) {
  using Call = update::MemoryTiers::Call;
  for (Call const call : {Call::create, Call::commit, Call::fetch}) {
    expect_failure(call);
  }
}

TEST(StoredActivations, RefuseWhatTheyDoNotKnowOrHave) {
  update::MemoryTiers tiers{StoredActivations::extents(stored_parts())};
  auto const device = device::make_host_device(0);
  auto const model = device->make_calling_stream("model");
  StoredActivations store{stored_parts(), tiers, *device, {}};
  std::vector<std::byte> memory(stored_part_size);
  auto const now = model->record();
  EXPECT_THROW((void)store.put(0, 0, memory, now), PreconditionError) << "before open";
  store.open();
  EXPECT_THROW((void)store.put(2, 0, memory, now), PreconditionError);
  EXPECT_THROW((void)store.put(0, 3, memory, now), PreconditionError) << "of another size";
  EXPECT_THROW((void)store.take(0, 0, memory, now), PreconditionError);
}

// The last two blocks stay in their slabs, four go through storage.
TEST(StoredActivations, ChangeNoBitsOfAModel) {
  auto shape = model::test::tiny_llama3();
  shape.layers = blocks;
  model::RunShape run{.batch = 2, .sequence = 5};
  model::test::TestModel<bfloat16> kept{shape, run};
  auto const batch = model::test::random_batch(2, 5, shape.vocab, 3);
  double const loss = kept.step(batch);
  for (int const slabs : {1, 2}) {
    run.fates = model::test::all_blocks(shape, model::leaving_block);
    run.slabs = slabs;
    auto const parts = model::leaving_parts<bfloat16>(shape, run);
    tiers::VirtualFixture storage;
    storage.add_paths(1);
    storage.settings.buffers = 2;
    storage.settings.cached = 1;
    auto const tiers = storage.make(StoredActivations::extents(parts));
    model::test::TestModel<bfloat16> swapped{shape, run, 0.3, 1, {.compute = 1e15}};
    StoredActivations store{parts, *tiers, *swapped.device, {}};
    swapped.model.set_store(store);
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(swapped.step(batch), loss);
      EXPECT_EQ(swapped.gradients.values, kept.gradients.values) << slabs << " slabs";
    }
    EXPECT_GT(tiers->traffic().misses, 0);
  }
}

}  // namespace
}  // namespace offstage::activations
