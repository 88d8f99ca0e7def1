#include "report/run.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>

#include "base/error.hpp"
#include "temporary_directory.hpp"

namespace offstage::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunOf : public ::testing::Test {
 protected:
  report::Run read(std::string const& metrics) {
    directory_.write("metrics.jsonl", metrics);
    return read_run(directory_.path().string());
  }
  std::string error_of(std::string const& metrics) {
    try {
      read(metrics);
    } catch (DataError const& error) {
      return error.what();
    }
    return "none";
  }

  TemporaryDirectory directory_;
};

TEST_F(RunOf, HasStartsOnOneTimeAxisWithWhatFollowedEach) {
  auto const run =
      read(R"({"start":0,"time":"2026-01-01T00:00:00Z","ranks":2,"nodes":["a","b"],"parameters":5}
{"step":1,"loss":2.5,"step_seconds":4.0,"elapsed_seconds":5.0}
{"step":1,"saved":2,"seconds":1.0,"stood_still_seconds":0.5,"elapsed_seconds":6.5}
{"start":1,"time":"2026-01-01T01:00:00Z","ranks":1,"nodes":["a"],"job":"7","from":"b","changed":{"a.b":["1","2"],"a.c":"3"}}
{"step":2,"loss":null,"step_seconds":4.0,"elapsed_seconds":4.5}
{"step":2,"valid_loss":2.0,"elapsed_seconds":5.0,"valid_losses":[{"path":"x/a","loss":1.5,"targets":1},{"path":"b","loss":null,"targets":0}]}
{"step":2,"end":"done","elapsed_seconds":6.0,"advice":["buy disks"]}
)");
  ASSERT_EQ(run.starts.size(), 2U);
  EXPECT_EQ(run.parameters, 5.0);
  EXPECT_EQ(run.starts[0].end, "");
  EXPECT_EQ(run.starts[0].steps.at(0).at, 5.0);
  EXPECT_EQ(run.starts[0].last_at, 6.5);
  EXPECT_EQ(run.saves.at(0).at, 6.5);
  EXPECT_EQ(run.starts[1].at, 3600.0);
  EXPECT_EQ(run.starts[1].steps.at(0).at, 3604.5);
  EXPECT_TRUE(std::isnan(run.starts[1].steps.at(0).loss));
  EXPECT_EQ(run.starts[1].end, "done");
  EXPECT_EQ(run.starts[1].from, "b");
  ASSERT_EQ(run.starts[1].changes.size(), 1U);
  EXPECT_EQ(run.starts[1].changes[0].key, "a.b");
  EXPECT_EQ(run.starts[1].changes[0].now, "2");
  EXPECT_EQ(run.validations.at(0).loss, 2.0);
  EXPECT_TRUE(run.validations.at(0).counts);
  EXPECT_EQ(run.validations.at(0).sources, "a 1.5000, b no target counts");
  EXPECT_EQ(run.steps(), 2);
  EXPECT_THAT(run.advice, ElementsAre("buy disks"));
}

TEST_F(RunOf, BeginsNoStartBeforeTheLastOneEndedWhateverTheClocksSay) {
  auto const run = read(R"({"start":0,"time":"2026-01-01T00:00:00Z"}
{"step":1,"loss":2.5,"step_seconds":4.0,"elapsed_seconds":5.0}
{"start":1,"time":"2026-01-01T00:00:03Z"}
{"step":2,"loss":2.5,"step_seconds":4.0,"elapsed_seconds":4.5}
)");
  ASSERT_EQ(run.starts.size(), 2U);
  EXPECT_EQ(run.starts[1].at, 5.0);
  EXPECT_EQ(run.starts[1].steps.at(0).at, 9.5);
}

TEST_F(RunOf, CountsNoTimeOfStepsThatWereLost) {
  auto const run = read(R"({"start":0,"time":"2026-01-01T00:00:00Z"}
{"step":1,"loss":2.5,"step_seconds":4.0,"elapsed_seconds":5.0}
{"step":50,"end":"failed: no","elapsed_seconds":500.0}
{"start":1,"time":"2026-01-01T01:00:00Z"}
{"step":2,"loss":2.5,"step_seconds":4.0,"elapsed_seconds":4.5}
{"step":2,"end":"done","elapsed_seconds":6.0}
)");
  ASSERT_EQ(run.starts.size(), 2U);
  EXPECT_EQ(run.starts[0].last_at, 5.0);
  EXPECT_EQ(run.starts[0].end, "failed: no");
  EXPECT_EQ(run.starts[1].last_at, 3606.0);
}

TEST_F(RunOf, ComparesNoValidationsOfOtherData) {
  auto const run = read(R"({"start":0,"time":"2026-01-01T00:00:00Z"}
{"step":1,"valid_loss":2.0,"elapsed_seconds":5.0}
{"start":1,"time":"2026-01-01T01:00:00Z","validations_begin_anew":true}
{"step":2,"valid_loss":3.0,"elapsed_seconds":5.0}
)");
  EXPECT_EQ(run.validations.size(), 2U);
  EXPECT_EQ(run.first_comparable, 1U);
}

TEST_F(RunOf, OlderVersionsHasStepsOneAfterTheOther) {
  auto const run = read(
      "{\"step\":1,\"loss\":2.5,\"step_seconds\":4.0}\n{\"step\":2,\"loss\":2.5,\"step_seconds\":3."
      "0}\n");
  ASSERT_EQ(run.starts.size(), 1U);
  EXPECT_EQ(run.starts[0].steps.at(1).at, 7.0);
  EXPECT_TRUE(std::isnan(run.memory.host_limit));
}

TEST_F(RunOf, PathsAddUpOverSteps) {
  std::string const step =
      R"({"step":1,"loss":1.0,"step_seconds":4.0,"paths":[{"path":"/nvme","emulated":true,"read_bytes":2000000000,)"
      R"("write_bytes":0,"read_gb_per_s":1.0,"write_gb_per_s":null,"busy":0.5}]})";
  auto const run = read(
      R"({"start":0,"time":"2026-01-01T00:00:00Z","paths":[{"path":"/nvme","can_read_gb_per_s":1.5,"can_write_gb_per_s":null,"sharing_transfers":4}]})"
      "\n" +
      step + "\n" + step + "\n");
  ASSERT_EQ(run.paths.size(), 1U);
  EXPECT_EQ(run.paths[0].read_bytes, 4e9);
  EXPECT_EQ(run.paths[0].read_seconds, 4.0);
  EXPECT_EQ(run.paths[0].write_seconds, 0.0);
  EXPECT_EQ(run.paths[0].busy_seconds, 4.0);
  EXPECT_EQ(run.paths[0].counted_seconds, 8.0);
  EXPECT_EQ(run.paths[0].can_read, 1.5);
  EXPECT_TRUE(std::isnan(run.paths[0].can_write));
  EXPECT_EQ(run.paths[0].sharing_transfers, 4.0);
  EXPECT_TRUE(run.paths[0].emulated);
}

TEST_F(RunOf, PathsAreBusyInTheTimeFromStepToStep) {
  auto const run = read(R"({"start":0,"time":"2026-01-01T00:00:00Z"}
{"step":1,"loss":1.0,"step_seconds":4.0,"elapsed_seconds":5.0,"paths":[{"path":"/nvme","busy":0.5}]}
{"step":2,"loss":1.0,"step_seconds":4.0,"elapsed_seconds":13.0,"paths":[{"path":"/nvme","busy":0.75}]}
{"start":2,"time":"2026-01-01T01:00:00Z"}
{"step":3,"loss":1.0,"step_seconds":2.0,"elapsed_seconds":3.0,"paths":[{"path":"/nvme","busy":1.0}]}
)");
  EXPECT_EQ(run.paths[0].counted_seconds, 4.0 + 8.0 + 2.0) << "4 s between the steps of the first";
  EXPECT_EQ(run.paths[0].busy_seconds, 2.0 + 6.0 + 2.0);
}

TEST_F(RunOf, ALineThatIsBeingWrittenIsLeftOut) {
  EXPECT_EQ(read("{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"lo").steps(), 1);
  EXPECT_EQ(read("").steps(), 0);
}

TEST_F(RunOf, LinesThatAreNoRecordsAreLeftOutAndCounted) {
  auto const run = read(
      "{\"step\":1,\"loss\":2.5}\nnonsense\n[1]\n{\"step\":2,\"loss\":2.0}\n\n{\"step\":3,\"lo");
  EXPECT_EQ(run.steps(), 2);
  EXPECT_EQ(run.bad_lines.first, 2);
  EXPECT_EQ(run.bad_lines.count, 3);
  EXPECT_EQ(read("{\"step\":1,\"loss\":2.5}\n").bad_lines.count, 0);
}

TEST_F(RunOf, AFileWithoutAnyRecordIsRefused) {
  EXPECT_THAT(error_of("[1]\n2\n"), HasSubstr("metrics.jsonl:1: "));
}

TEST_F(RunOf, AForecastHasItsStepAndStart) {
  auto const run = read(R"({"start":0,"time":"2026-01-01T00:00:00Z"}
{"step":2,"forecast":{"given":false,"step_seconds":1.0}}
{"start":5,"time":"2026-01-01T01:00:00Z"}
{"step":7,"forecast":{"step_seconds":2.0}}
)");
  ASSERT_EQ(run.forecasts.size(), 2U);
  EXPECT_EQ(run.forecasts[0].after, 2);
  EXPECT_EQ(run.forecasts[0].start, 0U);
  EXPECT_EQ(run.forecasts[1].after, 7);
  EXPECT_EQ(run.forecasts[1].start, 1U);
}

TEST_F(RunOf, AStepSaysWhetherItsUpdateWasSkippedAndItsLossScale) {
  auto const run = read(
      "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":2.5,\"loss_scale\":1024.0,\"skipped\":true}"
      "\n");
  EXPECT_FALSE(run.starts[0].steps.at(0).skipped);
  EXPECT_EQ(run.starts[0].steps.at(0).loss_scale, 1.0);
  EXPECT_TRUE(run.starts[0].steps.at(1).skipped);
  EXPECT_EQ(run.starts[0].steps.at(1).loss_scale, 1024.0);
}

TEST_F(RunOf, KeysOfOtherTypesAreTakenAsNotRecorded) {
  auto const run =
      read(R"({"start":"x","time":5,"ranks":"y","nodes":3,"paths":[1,"z"],"host_memory_limit":"a"}
{"step":1,"loss":2.5,"paths":[{"path":3,"emulated":"yes"}],"step_seconds":[]}
{"step":1,"forecast":3}
{"step":1,"end":3,"advice":[{}]}
)");
  EXPECT_EQ(run.steps(), 1);
  EXPECT_TRUE(std::isnan(run.memory.host_limit));
}

TEST_F(RunOf, NestingHasNoLimit) {
  constexpr std::size_t levels = 200'000;
  auto const deep = std::string(levels, '[') + std::string(levels, ']');
  auto const run = read(R"({"start":0,"paths":[{"path":)" + deep + R"(}]}
{"step":1,"loss":2.5,"paths":[{"path":"a","busy":)" +
                        deep +
                        R"(}]}
)");
  EXPECT_EQ(run.steps(), 1);
}

TEST_F(RunOf, WhatIsNoFileIsNotRead) {
  std::string const folder = directory_.path().string();
  ASSERT_EQ(mkfifo((folder + "/header.txt").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", folder + "/effective.cfg");
  EXPECT_EQ(read("{\"start\":0}\n").header, "");
  EXPECT_EQ(text_beside(folder, "effective.cfg"), "");
  directory_.write("long", std::string(3 << 20, 'x'));
  EXPECT_EQ(text_beside(folder, "long").size(), 1U << 20);
}

TEST(RunIn, ADirectoryWithoutMetricsIsNamedWithWhatIsWanted) {
  TemporaryDirectory const directory;
  try {
    static_cast<void>(read_run(directory.path().string()));
    FAIL();
  } catch (DataError const& error) {
    EXPECT_THAT(error.what(), HasSubstr(directory.path().string()));
    EXPECT_THAT(error.what(), HasSubstr("run.dir"));
  }
}

TEST(TellApart, NamesOfEqualLastPartsBecomeWholePaths) {
  std::vector<report::Run> runs(3);
  runs[0].name = runs[1].name = "run";
  runs[0].directory = "a/run";
  runs[1].directory = "b/run";
  runs[2].name = "other";
  tell_apart(runs);
  EXPECT_EQ(runs[0].name, "a/run");
  EXPECT_EQ(runs[1].name, "b/run");
  EXPECT_EQ(runs[2].name, "other");
}

}  // namespace
}  // namespace offstage::report
