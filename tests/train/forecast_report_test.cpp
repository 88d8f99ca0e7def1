#include "train/report/forecast_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace offstage::train {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RunForecast forecast_of_a_run() {
  RunForecast forecast;
  forecast.step = {.step = Seconds{4.0},
                   .forward = Seconds{1.0},
                   .backward = Seconds{2.0},
                   .update = Seconds{1.0},
                   .uses = {},
                   .paths = {{.read = 512 * KiB, .written = 256 * KiB}}};
  forecast.paths = {{2e9, 1e9, false}};
  return forecast;
}

StepTimes times(double seconds, Bytes read) {
  StepTimes times{.forward = Seconds{seconds},
                  .backward = Seconds{2 * seconds},
                  .update = Seconds{seconds / 2},
                  .step = Seconds{4 * seconds}};
  auto& path = times.storage.paths.emplace_back();
  path.directory = "/nvme";
  path.traffic.read = {.bytes = read, .seconds = Seconds{0.001}};
  return times;
}

TEST(ForecastReport, SaysNothingWhereNothingWasExpected) {
  ForecastReport report;
  report.add(times(1.0, 0));
  EXPECT_THAT(report.lines(), IsEmpty());
  EXPECT_EQ(report.step(), Seconds{});
  report.expect(forecast_of_a_run());
  EXPECT_THAT(report.lines(), IsEmpty()) << "no step since";
}

TEST(ForecastReport, HasTheMeansOfPhasesAndPathsWithoutTheFirstStep) {
  ForecastReport report;
  report.set_ranks(2);
  report.expect(forecast_of_a_run());
  EXPECT_EQ(report.step(), Seconds{4.0});
  report.add(times(100.0, GiB));
  report.add(times(1.0, MiB));
  report.add(times(3.0, 3 * MiB));
  EXPECT_THAT(
      report.lines(),
      ElementsAre(
          "predicted, achieved, mean of 2 steps; by rates that were given or measured at the start",
          "  forward          1.0000 s     2.0000 s   +100.0 %",
          "  backward         2.0000 s     4.0000 s   +100.0 %",
          "  update           1.0000 s     1.0000 s     +0.0 %",
          "  step             4.0000 s     8.0000 s   +100.0 %",
          "  /nvme read: 1.00 MiB at 2.00 GB/s, 2.00 MiB at 2.10 GB/s",
          "  /nvme written: 512 KiB at 1.00 GB/s, 0 B at no known rate"));
}

TEST(ForecastReport, HasTheRateOfTransfersThatOverlapTogether) {
  ForecastReport report;
  report.expect(forecast_of_a_run());
  auto overlapping = times(1.0, MiB);
  overlapping.storage.seconds =
      Seconds{0.0005};  // of the step, in which transfers have a millisecond
  report.add(overlapping);
  EXPECT_THAT(report.lines(),
              Contains(HasSubstr("/nvme read: 512 KiB at 2.00 GB/s, 1.00 MiB at 2.10 GB/s")));
}

TEST(ForecastReport, AFactorSaysHowFarStepsAreFromAPredictionThatMissesThemByFar) {
  ForecastReport report;
  auto quick = forecast_of_a_run();
  quick.step.forward = Seconds{0.2};
  quick.step.update = Seconds{0.0009};
  report.expect(quick);
  report.add(times(1.0, 0));
  auto const lines = report.lines();
  EXPECT_THAT(lines[1], HasSubstr("1.0000 s   +400.0 %"));
  EXPECT_THAT(lines[3], HasSubstr("0.5000 s      x 556"));
}

TEST(ForecastReport, OfARunOfOneStepHasThatOne) {
  ForecastReport report;
  report.expect(forecast_of_a_run());
  report.add(times(1.0, 0));
  EXPECT_THAT(report.lines().front(), HasSubstr("mean of 1 step;"));
}

TEST(ForecastReport, SaysByWhichRates) {
  ForecastReport report;
  report.add(times(1.0, 0));
  auto measured = forecast_of_a_run();
  measured.given = false;
  measured.unknown = {"the link to the device", "the link from the device"};
  report.expect(measured);
  report.add(times(1.0, 0));
  report.add(times(3.0, 0));
  EXPECT_EQ(report.lines().front(),
            "predicted, achieved, mean of 2 steps; by rates of the first steps where none were "
            "given; as if they took no time: the link to the device, the link from the device");
}

}  // namespace
}  // namespace offstage::train
