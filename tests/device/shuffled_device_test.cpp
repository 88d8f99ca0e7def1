#include "device/shuffled_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

namespace offstage::device {
namespace {

TEST(ShuffledDevice, HidesItsMemoryFromTheHostAndFillsItWithNoise) {
  ShuffledDevice device{1};
  EXPECT_FALSE(device.host_visible());
  Buffer const fresh = device.allocate(100, "fresh");
  EXPECT_TRUE(std::ranges::all_of(fresh.as<unsigned char>(), [](int b) { return b == 0xFF; }));
  EXPECT_EQ(device.used(), 100);
}

/// Three streams, as an update has them: up, compute, down; one slot of device memory for two
/// chunks.
TEST(ShuffledDevice, WorkThatEventsOrderGivesTheSameUnderEverySeed) {
  constexpr int chunks = 6;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    ShuffledDevice device{seed};
    std::vector<Buffer> slots(2);
    std::vector<std::shared_ptr<Event>> free(2);
    for (Buffer& slot : slots) {
      slot = device.allocate(sizeof(int), "slot");
    }
    auto const up = device.make_stream("up");
    auto const compute = device.make_stream("compute");
    auto const down = device.make_stream("down");
    std::vector<int> values(chunks);
    std::iota(values.begin(), values.end(), 1);
    for (std::size_t i = 0; i < chunks; ++i) {
      int* const slot = slots[i % 2].as<int>().data();
      if (free[i % 2] != nullptr) {
        up->wait(*free[i % 2]);
      }
      up->copy(slot, &values[i], sizeof(int), Copy::host_to_device);
      compute->wait(*up->record());
      compute->enqueue([slot] { *slot *= 10; }, {.updates = 1});
      down->wait(*compute->record());
      down->copy(&values[i], slot, sizeof(int), Copy::device_to_host);
      free[i % 2] = down->record();
    }
    down->synchronize();
    EXPECT_EQ(values, (std::vector<int>{10, 20, 30, 40, 50, 60}));
  }
}

}  // namespace
}  // namespace offstage::device
