#include "train/report/report.hpp"

#include <gmock/gmock.h>

#include "train/saves/stop.hpp"
#include "train/storage_fixture.hpp"

namespace offstage::train {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string table_of(PhaseTimes const& times, StorageTotals const& storage = {}) {
  ::testing::internal::CaptureStdout();
  print_end_table(times, storage);
  return ::testing::internal::GetCapturedStdout();
}

PhaseTimes some_times() {
  PhaseTimes times;
  times.forward = Seconds{2.0};
  times.backward = Seconds{4.0};
  times.update = Seconds{1.0};
  times.total = Seconds{10.0};
  times.update_bytes = 2'000'000'000;
  times.steps = 5;
  times.tokens = 1000;
  times.flops = 3e13;
  return times;
}

TEST(EndTable, HasEachPhaseWithItsShare) {
  auto const table = table_of(some_times());
  EXPECT_THAT(table, ContainsRegex("forward +2\\.00 s +20\\.0 % +-"));
  EXPECT_THAT(table, ContainsRegex("backward +4\\.00 s +40\\.0 % +-"));
  EXPECT_THAT(table, ContainsRegex("update +1\\.00 s +10\\.0 % +2\\.00"));
  EXPECT_THAT(table, ContainsRegex("other +3\\.00 s +30\\.0 %"));
  EXPECT_THAT(table, HasSubstr("5 steps, 100 tokens/s, 3 TFLOP/s"));
}

TEST(EndTable, HasNoRateOfUpdatesUnderBackwardWhichHaveNoTimeOfTheirOwn) {
  auto times = some_times();
  times.overlapped = 4;
  times.redone = 1;
  auto const table = table_of(times);
  EXPECT_THAT(table, ContainsRegex("update +1\\.00 s +10\\.0 % +-"));
  EXPECT_THAT(table, HasSubstr("updates under backward: 4 of 5 steps, 1 of them done again"));
}

TEST(EndTable, SaysWhatOfTheSavesWentOnUnderSteps) {
  auto times = some_times();
  EXPECT_THAT(table_of(times), Not(HasSubstr("checkpoints:")));
  times.checkpoint = Seconds{0.5};
  times.saving = Seconds{2.0};
  EXPECT_THAT(table_of(times), HasSubstr("checkpoints: written in 2.00 s, 1.50 s of it under"));
  EXPECT_THAT(table_of(times), Not(HasSubstr("until updates had ended")));
  times.before_saves = Seconds{0.25};
  EXPECT_THAT(table_of(times), ContainsRegex("checkpoint +0\\.75 s +7\\.5 %"));
  EXPECT_THAT(table_of(times), HasSubstr("written in 2.00 s, 1.50 s of it under"));
  EXPECT_THAT(table_of(times), HasSubstr("stood still for 0.25 s until updates had ended"));
  EXPECT_THAT(table_of(times), ContainsRegex("other +2\\.25 s"));
}

TEST(EndTable, HasTheStoragePathsAndTheMemory) {
  auto times = some_times();
  times.memory.host_peak = 2048;
  StorageTotals totals;
  totals.add(one_step());
  auto const table = table_of(times, totals);
  EXPECT_THAT(table, HasSubstr("/nvme"));
  EXPECT_THAT(table, HasSubstr("host memory of state and gradients per node: peak 2.00 KiB"));
  EXPECT_THAT(table, HasSubstr("device memory per rank: peak 0 B, limit none"));
}

TEST(ReasonToStop, IsASentenceButForNone) {
  EXPECT_STREQ(reason_of(Stop::none), "");
  EXPECT_STREQ(reason_of(Stop::file), "STOP was found in run.dir");
  EXPECT_STREQ(reason_of(Stop::signal), "a signal came");
}

}  // namespace
}  // namespace offstage::train
