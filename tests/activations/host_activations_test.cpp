#include "activations/host_activations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "device/shuffled_device.hpp"
#include "state/exchange.hpp"

namespace offstage::activations {
namespace {

constexpr Bytes part_size = 1000;

/// Three blocks' two parts each.
std::vector<state::LeavingPart> some_parts() {
  std::vector<state::LeavingPart> parts;
  for (int block = 0; block < 3; ++block) {
    parts.push_back({block, 0, part_size});
    parts.push_back({block, 3, part_size + 77});
  }
  return parts;
}

std::byte fill_of(int round, state::LeavingPart const& part) {
  return static_cast<std::byte>(1 + round * 50 + part.block * 8 + part.part);
}

// One part's device memory serves all, each filled and overwritten as soon as the points allow.
TEST(HostActivations, BringBackWhatWasPutWhateverOvertakesWhat) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    device::ShuffledDevice device{seed};
    auto const model = device.make_stream("model");
    auto const memory = device.allocate(part_size + 77, "a part");
    HostActivations store{some_parts(), device, nullptr};
    for (int round = 0; round < 3; ++round) {
      store.open();
      auto parts = some_parts();
      for (auto const& part : parts) {
        auto const there = memory.as<std::byte>().first(static_cast<std::size_t>(part.bytes));
        model->enqueue([=] { std::ranges::fill(there, fill_of(round, part)); });
        model->wait(*store.put(part.block, part.part, there, model->record()));
        model->enqueue([=] { std::ranges::fill(there, std::byte{0xFF}); });
      }
      std::ranges::reverse(parts);
      for (auto const& part : parts) {
        auto const there = memory.as<std::byte>().first(static_cast<std::size_t>(part.bytes));
        model->enqueue([=] { std::ranges::fill(there, std::byte{0xEE}); });
        model->wait(*store.take(part.block, part.part, there, model->record()));
        model->enqueue([=] {
          EXPECT_EQ(std::ranges::count(there, fill_of(round, part)), part.bytes)
              << "seed " << seed << ", block " << part.block;
        });
      }
      model->synchronize();
    }
    Bytes const all = 3 * (2 * part_size + 77);
    EXPECT_EQ(store.traffic().out, 3 * all);
    EXPECT_EQ(store.traffic().back, 3 * all);
  }
}

TEST(HostActivations, BringBackAPartThatIsCopiedInPieces) {
  constexpr Bytes bytes = 64 * MiB + 4096;
  auto const device = device::make_host_device(0);
  auto const model = device->make_calling_stream("model");
  HostActivations store{std::array{state::LeavingPart{0, 0, bytes}}, *device, nullptr};
  store.open();
  std::vector<std::byte> part(static_cast<std::size_t>(bytes), std::byte{1});
  std::fill(part.begin() + 64 * MiB, part.end(), std::byte{2});
  auto const as_put = part;
  store.put(0, 0, part, model->record())->wait();
  std::ranges::fill(part, std::byte{0xEE});
  store.take(0, 0, part, model->record())->wait();
  EXPECT_TRUE(part == as_put);
}

TEST(HostActivations, TakeAPageOfHostMemoryForEachPartAtLeast) {
  EXPECT_EQ(HostActivations::host_bytes(some_parts()), 6 * 4096);
  EXPECT_EQ(HostActivations::host_bytes(std::array{state::LeavingPart{0, 0, 4097}}), 8192);
  EXPECT_EQ(HostActivations::host_bytes({}), 0);
}

TEST(HostActivations, RefuseWhatTheyDoNotKnowOrHave) {
  auto const device = device::make_host_device(0);
  auto const model = device->make_calling_stream("model");
  std::vector<std::byte> memory(part_size);
  HostActivations store{some_parts(), *device, nullptr};
  auto const now = model->record();
  EXPECT_THROW((void)store.put(3, 0, memory, now), PreconditionError);
  EXPECT_THROW((void)store.put(0, 1, memory, now), PreconditionError);
  EXPECT_THROW((void)store.put(0, 3, memory, now), PreconditionError);  // of another size
  EXPECT_THROW((void)store.take(0, 0, memory, now), PreconditionError);
  (void)store.put(0, 0, memory, now);
  store.take(0, 0, memory, now)->wait();
  EXPECT_NO_THROW(store.take(0, 0, memory, now)->wait()) << "a second time";
  store.open();
  EXPECT_THROW((void)store.take(0, 0, memory, now), PreconditionError) << "of the one before";
}

// A point that failed: whoever would use what was never made hears of it.
TEST(HostActivations, HandOnWhatTheModelsStreamFailedWith) {
  auto const device = device::make_host_device(0);
  auto const model = device->make_stream("model");
  std::vector<std::byte> memory(part_size);
  HostActivations store{some_parts(), *device, nullptr};
  model->enqueue([] { throw IoError{"lost"}; });
  EXPECT_THROW(store.put(0, 0, memory, model->record())->wait(), IoError);
}

}  // namespace
}  // namespace offstage::activations
