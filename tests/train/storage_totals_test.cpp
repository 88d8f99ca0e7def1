#include "train/report/storage_totals.hpp"

#include <gmock/gmock.h>

#include "train/storage_fixture.hpp"

namespace offstage::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(StorageTotals, SayHowLongAnEnduranceThatIsGivenLasts) {
  auto step = one_step();
  step.nodes = 2;
  step.paths[0].endurance = 500 * 86'400;
  StorageTotals totals;
  totals.add(step);
  totals.add(step);
  auto const lines = totals.lines();
  ASSERT_EQ(lines.size(), 9U);
  // 500 bytes in 4 s on two nodes.
  EXPECT_THAT(lines[3],
              HasSubstr("on each node 250 B written a step, 5.15 MiB a day, which uses up "
                        "endurance in 8.0 days"));
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
