#include "train/offload/storage_step.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.hpp"
#include "train/storage_fixture.hpp"

namespace offstage::train {

namespace {

TEST(StorageDifference, IsWhatHappenedBetweenTheLooks) {
  auto const step = one_step();
  ASSERT_EQ(step.paths.size(), 2U);
  EXPECT_EQ(step.paths[0].directory, "/nvme");
  EXPECT_FALSE(step.paths[0].emulated);
  EXPECT_TRUE(step.paths[1].emulated);
  EXPECT_EQ(step.paths[0].traffic.read.bytes, 1000);
  EXPECT_EQ(step.paths[0].traffic.read.transfers, 100);
  EXPECT_EQ(step.paths[0].traffic.write.bytes, 500);
  EXPECT_EQ(step.paths[0].resident_bytes, 200);
  EXPECT_EQ(step.host_bytes, 100);
  EXPECT_EQ(step.hits, 2);
  EXPECT_EQ(step.misses, 3);
  EXPECT_DOUBLE_EQ(transfer_rate(step.paths[0].traffic.read), 500.0);
  EXPECT_DOUBLE_EQ(transfer_rate(step.paths[1].traffic.write), 0.0);
  EXPECT_DOUBLE_EQ(lock_wait(step.paths[0]).count(), 0.75);
}

TEST(StorageDifference, KeepsTheLongestSinceTheStart) {
  auto const still = difference(counters(2), counters(2),
                                {.paths = two_paths, .residence = {.host = 0, .paths = {0, 0}}});
  EXPECT_DOUBLE_EQ(longest_wait(still.paths[0]).count(), 0.25);
  EXPECT_EQ(still.paths[0].traffic.read.bytes, 0);
}

TEST(StorageDifference, CountsSubgroupsTwiceOverTheSecondsOfAWorker) {
  // 2 x 2000 bytes in (5 + 3) s of 4 workers.
  EXPECT_DOUBLE_EQ(one_step().effective_rate, 2000.0);
}

TEST(StorageDifference, HasNoEffectiveRateWhereNothingWasFetched) {
  auto const still = difference(counters(2), counters(2),
                                {.paths = two_paths, .residence = {.host = 0, .paths = {0, 0}}});
  EXPECT_EQ(still.effective_rate, 0.0);
}

TEST(StorageDifference, OfStateInHostMemoryHasNoPaths) {
  std::vector<tiers::PathSettings> const none;
  tiers::Traffic after;
  after.hits = 4;
  auto const step = difference({}, after, {.paths = none, .residence = {.host = 50, .paths = {}}});
  EXPECT_TRUE(step.paths.empty());
  EXPECT_EQ(step.hits, 4);
  EXPECT_EQ(step.host_bytes, 50);
}

TEST(StorageDifference, RefusesCountersOfOtherPaths) {
  EXPECT_THROW((void)difference({}, counters(1), {.paths = two_paths}), PreconditionError);
  EXPECT_THROW((void)difference(counters(1), counters(2), {.paths = two_paths}), PreconditionError);
}

TEST(BusyShare, IsOfAllLanesOnAllNodes) {
  auto step = one_step();
  EXPECT_DOUBLE_EQ(busy_part(step.paths[0], step), 3.0 / 4.0);
  EXPECT_DOUBLE_EQ(busy_part(step.paths[1], step), 2.0 / (4.0 * 4.0));
  step.nodes = 2;
  EXPECT_DOUBLE_EQ(busy_part(step.paths[0], step), 3.0 / 8.0);
  step.seconds = {};
  EXPECT_EQ(busy_part(step.paths[0], step), 0.0);
}

TEST(ReachedRate, IsThatOfAllTransfersThatOverlap) {
  auto step = one_step();
  auto const& path = step.paths[0];
  EXPECT_DOUBLE_EQ(reached_rate(path.traffic.read, path, step), transfer_rate(path.traffic.read));
  step.seconds = Seconds{1.5};  // 3 seconds of transfers
  EXPECT_DOUBLE_EQ(reached_rate(path.traffic.read, path, step), 1000.0);
}

TEST(ReachedRate, IsThatOfAllTransfersThatThePathTakesAtATime) {
  auto step = one_step();
  step.seconds = Seconds{1.0};
  auto& path = step.paths[0];
  EXPECT_EQ(step.paths[1].sharing_transfers, 2) << "of four, two each way";
  path.transfers_at_once = path.sharing_transfers = 4;
  EXPECT_DOUBLE_EQ(busy_part(path, step), 3.0 / 4.0);
  EXPECT_DOUBLE_EQ(reached_rate(path.traffic.read, path, step), 3.0 * 500.0);
}

}  // namespace
}  // namespace offstage::train
