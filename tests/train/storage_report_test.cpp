#include "train/report/storage_report.hpp"

#include <gmock/gmock.h>

#include <vector>

#include "base/error.hpp"

namespace offstage::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

tiers::DirectionTraffic direction(Bytes bytes, double seconds, double waited, double longest) {
  return {.bytes = bytes,
          .transfers = bytes / 10,
          .seconds = Seconds{seconds},
          .waited = Seconds{waited},
          .longest_wait = Seconds{longest}};
}

/// A half-duplex path, and an emulated one that is full duplex and lets two processes in.
std::vector<tiers::PathSettings> make_two_paths() {
  std::vector<tiers::PathSettings> paths(2);
  paths[0].directory = "/nvme";
  paths[1].directory = "/pfs";
  paths[1].duplex = tiers::Duplex::full;
  paths[1].processes = 2;
  paths[1].emulation = tiers::Emulation{.read_rate = 1e9};
  return paths;
}
std::vector<tiers::PathSettings> const two_paths = make_two_paths();

tiers::Traffic counters(std::int64_t factor) {
  auto const times = static_cast<double>(factor);
  return {.paths = {{direction(1000 * factor, 2.0 * times, 0.5 * times, 0.25),
                     direction(500 * factor, 1.0 * times, 0.25 * times, 0.125)},
                    {direction(100 * factor, 2.0 * times, 0.0, 0.0), {}}},
          .hits = 2 * factor,
          .misses = 3 * factor,
          .fetched_bytes = 2000 * factor,
          .fetch_seconds = Seconds{5.0 * times},
          .flush_seconds = Seconds{3.0 * times}};
}

StorageStep one_step() {
  return difference(counters(1), counters(2),
                    {.paths = two_paths,
                     .residence = {.host = 100, .paths = {200, 700}},
                     .workers = 4,
                     .nodes = 1,
                     .seconds = Seconds{4.0}});
}

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
  EXPECT_DOUBLE_EQ(busy_share(step.paths[0], step), 3.0 / 4.0);
  EXPECT_DOUBLE_EQ(busy_share(step.paths[1], step), 2.0 / (4.0 * 4.0));
  step.nodes = 2;
  EXPECT_DOUBLE_EQ(busy_share(step.paths[0], step), 3.0 / 8.0);
  step.seconds = {};
  EXPECT_EQ(busy_share(step.paths[0], step), 0.0);
}

TEST(StorageTotals, SayNothingWithoutPaths) {
  StorageTotals totals;
  totals.add({});
  EXPECT_TRUE(totals.lines().empty());
}

TEST(StorageTotals, HaveARowPerPathAndMarkWhatIsEmulated) {
  StorageTotals totals;
  totals.add(one_step());
  totals.add(one_step());
  auto const lines = totals.lines();
  ASSERT_EQ(lines.size(), 8U);
  EXPECT_EQ(lines[1].find("state at the end"), lines[2].find("200 B (20.0 %)"));
  EXPECT_THAT(lines[2], AllOf(HasSubstr("/nvme"), HasSubstr("1.95 KiB"), HasSubstr("1000 B"),
                              HasSubstr("75.0 %"), HasSubstr("1.50 s"), HasSubstr("0.250 s")));
  EXPECT_THAT(lines[3], AllOf(HasSubstr("/pfs"), HasSubstr("700 B (70.0 %)")));
  EXPECT_THAT(lines[4], HasSubstr("emulated"));
  EXPECT_EQ(lines[1].find("state at the end"), lines[5].find("100 B (10.0 %)"));
  EXPECT_THAT(lines[6], HasSubstr("6 read, 4 found in host memory"));
}

TEST(StorageTotals, PassOverASkippedStepWhichHasNoUpdate) {
  StorageTotals totals;
  totals.add(one_step());
  auto const lines = totals.lines();
  totals.add({});
  EXPECT_EQ(totals.lines(), lines);
}

TEST(StorageTotals, ShowTheRangeOfTheUpdatesThatFetched) {
  auto step = one_step();
  StorageTotals totals;
  for (double const rate : {0.0, 2e9, 4e9}) {
    step.effective_rate = rate;
    totals.add(step);
  }
  EXPECT_THAT(totals.lines().back(),
              HasSubstr("per update: 3.00 GB/s, from 2.00 GB/s to 4.00 GB/s (emulated)"));
}

TEST(StorageTotals, LeaveOutAThroughputThatThereIsNot) {
  auto step = one_step();
  step.effective_rate = 0.0;
  StorageTotals totals;
  totals.add(step);
  EXPECT_THAT(totals.lines().back(), Not(HasSubstr("effective")));
}

TEST(StorageTotals, LeaveOutTheThroughputOfARunThatReadNothing) {
  auto step = one_step();
  StorageTotals totals;
  step.misses = 0;
  totals.add(step);
  EXPECT_THAT(totals.lines().back(), Not(HasSubstr("effective")));
}

TEST(StorageTotals, TakeWhereTheStateLivesFromTheLastStep) {
  auto step = one_step();
  StorageTotals totals;
  totals.add(step);
  step.host_bytes = 600;
  step.paths[0].resident_bytes = 400;
  step.paths[1].resident_bytes = 0;
  totals.add(step);
  auto const lines = totals.lines();
  EXPECT_THAT(lines[2], HasSubstr("400 B (40.0 %)"));
  EXPECT_THAT(lines[5], HasSubstr("600 B (60.0 %)"));
}

}  // namespace
}  // namespace offstage::train
