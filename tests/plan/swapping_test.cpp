#include "plan/swapping.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "base/error.hpp"

namespace offstage::plan {
namespace {

/// Forward computes for 1 s; what always leaves takes the link 0.2 s, the parameters 0.5 s.
SwapDemand swap_demand() {
  return {.forward_flops = 100,
          .always = 20,
          .company = {.parameters = 50, .gradients = 60},
          .compute = 100,
          .host_to_device = 100,
          .device_to_host = 100};
}

TEST(SwapTimes, AreThoseOfTheSlowestResource) {
  auto const computing = swap_times(swap_demand(), 30, 40);
  EXPECT_DOUBLE_EQ(computing.forward.count(), 1.0);
  EXPECT_DOUBLE_EQ(computing.backward.count(), 2.4);
  auto const to_device = swap_times(swap_demand(), 200, 0);
  EXPECT_DOUBLE_EQ(to_device.forward.count(), 2.2);   // 220 bytes leave
  EXPECT_DOUBLE_EQ(to_device.backward.count(), 2.7);  // they and the parameters come
  auto slow = swap_demand();
  slow.device_to_host = 10;
  EXPECT_DOUBLE_EQ(swap_times(slow, 0, 0).forward.count(), 2.0);
  EXPECT_DOUBLE_EQ(swap_times(slow, 0, 0).backward.count(), 6.0);  // the gradients leave
  slow.compute = 0;
  EXPECT_THROW((void)swap_times(slow, 0, 0), PreconditionError);
}

/// Fuyou's equations 4, 5 and 7, by hand: storage gives 40 bytes a second and takes 20.
TEST(SwapTimes, CountWhatStorageReadsAndWrites) {
  auto of = swap_demand();
  of.storage = {.read = 40, .write = 20};
  of.company.stored_read = 50;
  EXPECT_DOUBLE_EQ(swap_times(of, 30, 0).forward.count(), 50.0 / 40) << "host memory has all";
  of.company.host_room = 10;  // of 20 + 30 bytes that leave
  EXPECT_DOUBLE_EQ(swap_times(of, 30, 0).forward.count(), 50.0 / 40 + 40.0 / 20);
  EXPECT_DOUBLE_EQ(swap_times(of, 30, 0).backward.count(), (50.0 + 40) / 40);
  of.company.update_read = 300;
  of.company.update_written = 350;
  EXPECT_DOUBLE_EQ(swap_times(of, 30, 0).backward.count(), (50.0 + 40 + 300) / 40 + 350.0 / 20);
  of.storage.full_duplex = true;
  EXPECT_DOUBLE_EQ(swap_times(of, 30, 0).forward.count(), 2.0);
  EXPECT_DOUBLE_EQ(swap_times(of, 30, 0).backward.count(), 17.5);
  of.company.update = Seconds{20};
  EXPECT_DOUBLE_EQ(swap_times(of, 30, 0).backward.count(), 20) << "the cores update for longest";
}

TEST(SwapTimes, AreEndlessWhereThereIsNoStorageForWhatHostMemoryHasNoRoomFor) {
  auto of = swap_demand();
  of.company.host_room = 50;
  EXPECT_LT(swap_times(of, 30, 0).total().count(), 10);
  EXPECT_TRUE(std::isinf(swap_times(of, 31, 0).total().count()));
}

/// By another way: the least of all counts, the first of equals.
std::size_t by_trial(SwapDemand const& of, std::vector<SwapItem> const& items) {
  std::size_t best = 0;
  std::vector<double> totals;
  for (std::size_t count = 0; count <= items.size(); ++count) {
    Bytes swapped = 0;
    double recomputed = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
      swapped += i < count ? items[i].bytes : 0;
      recomputed += i < count ? 0 : items[i].flops;
    }
    totals.push_back(swap_times(of, swapped, recomputed).total().count());
    best = totals[count] < totals[best] ? count : best;
  }
  return best;
}

TEST(BestSwap, SwapsWhileTheLinkIsIdle) {
  // Each item saves 0.2 s of computing; backward's link is as busy as its computing when 180 bytes
  // of activations come.
  std::vector<SwapItem> const items(10, {.flops = 20, .bytes = 16});
  EXPECT_EQ(best_swap(swap_demand(), items), by_trial(swap_demand(), items));
  auto fast = swap_demand();
  fast.host_to_device = fast.device_to_host = 1e6;
  EXPECT_EQ(best_swap(fast, items), items.size());
  EXPECT_EQ(best_swap(fast, items, 4), 4U);
  auto slow = swap_demand();
  slow.host_to_device = slow.device_to_host = 1;
  EXPECT_EQ(best_swap(slow, items), 0U) << "nothing need leave";
  fast.company.host_room = fast.always + 3 * items.front().bytes;
  EXPECT_EQ(best_swap(fast, items), 3U) << "as many as host memory has room for";
  fast.storage = {.read = 1e6, .write = 1e6};
  EXPECT_EQ(best_swap(fast, items), items.size());
  // Figure 9 of Fuyou, batch 32: what the update moves on storage takes longer than computing all
  // again.
  fast.company.update_read = 500'000'000;
  EXPECT_EQ(best_swap(fast, items), 0U);
  EXPECT_EQ(best_swap(swap_demand(), {}), 0U);
}

}  // namespace
}  // namespace offstage::plan
