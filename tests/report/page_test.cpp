#include "report/page.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "report/parts.hpp"
#include "report/sections.hpp"

namespace offstage::report {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Step step(std::int64_t number, double predicted) {
  return {.number = number,
          .loss = 2.0,
          .norm = 1.0,
          .seconds = static_cast<double>(number),
          .forward = 1.0,
          .predicted = predicted,
          .at = static_cast<double>(number)};
}

TEST(PageOf, ARunThatRecordedNothingHasNoPictures) {
  report::Run run;
  run.name = "empty";
  run.starts.emplace_back();
  auto const text = page({run});
  EXPECT_THAT(text, HasSubstr("empty"));
  EXPECT_THAT(text, HasSubstr("runs still, or was killed"));
  EXPECT_THAT(text, Not(HasSubstr("<figure")));
}

TEST(PageOf, NamesAndTextsOfARunCannotBecomeMarkup) {
  report::Run run;
  run.name = "<script>alert(1)</script>";
  run.header = "</pre><img src=x>";
  run.advice = {"<b>"};
  run.settings = {{"data.train", "\"><i>"}};
  report::Run other;
  other.name = "other";
  auto const text = page({run, other});
  for (auto const* const tag : {"<script", "<img", "<i>"}) {
    EXPECT_THAT(text, Not(HasSubstr(tag)));
  }
  EXPECT_THAT(text, HasSubstr("&lt;script&gt;"));
}

TEST(PageOf, ARunSaysItsBestValidationOfTheDataThatItHasNowAndHowItFailed) {
  report::Run run;
  run.starts.emplace_back();
  run.starts.back().end = "failed: the loss <b>";
  run.validations = {{20, 3.25}, {40, 4.5}, {60, 4.25}};
  EXPECT_THAT(page({run}), HasSubstr("<td>3.2500</td>"));
  run.first_comparable = 1;
  EXPECT_THAT(page({run}), AllOf(HasSubstr("<td>4.2500</td>"), Not(HasSubstr("3.2500")),
                                 HasSubstr("<td>failed: the loss &lt;b&gt;</td>")));
}

TEST(PageOf, RunsSayWhichKeysDiffer) {
  report::Run one, other;
  one.settings = {{"optimizer.lr", "1e-3"}, {"train.seed", "1"}, {"run.dir", "a"}};
  other.settings = {{"optimizer.lr", "3e-3"}, {"train.seed", "1"}, {"run.dir", "b"}};
  auto const text = page({one, other});
  EXPECT_THAT(text,
              HasSubstr("<tr><th scope=\"row\">optimizer.lr</th><td>1e-3</td><td>3e-3</td></tr>"));
  EXPECT_THAT(text, Not(HasSubstr("train.seed")));
  EXPECT_THAT(text, Not(HasSubstr(">run.dir<")));
}

TEST(PageOf, ARunSaysWhatItsStartsChanged) {
  report::Run run;
  run.name = "stages";
  run.starts.resize(2);
  EXPECT_THAT(page({run}), Not(HasSubstr("What starts of")));
  run.starts[1].step = 20;
  run.starts[1].from = "other/step-20";
  run.starts[1].changes = {{"optimizer.lr", "1e-3", "1e-4"}};
  auto const text = page({run});
  EXPECT_THAT(text, HasSubstr("<h3>What starts of stages changed</h3>"));
  EXPECT_THAT(text, HasSubstr("<tr><td>20</td><td>optimizer.lr</td><td>1e-3</td><td>1e-4</td>"));
  EXPECT_THAT(text, HasSubstr("<td>checkpoint.resume</td><td></td><td>other/step-20</td>"));
}

TEST(PageOf, MemoryThatADamagedRecordDoesNotSayIsLeftOut) {
  report::Run run;
  run.memory = {.host_limit = 4e9, .host_libraries = 1e8, .device_planned = 2e9};
  auto const text = page({run});
  EXPECT_THAT(text, HasSubstr("no peak recorded, 2 GB planned"));
  EXPECT_THAT(text, Not(HasSubstr("host, per node")));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
  run.memory.device_planned = unknown;
  EXPECT_THAT(page({run}), Not(HasSubstr("Device memory")));
}

TEST(PageOf, RunsWhoseSettingsAreNotKnownDifferInNothing) {
  report::Run one, other, unread;
  one.settings = {{"optimizer.lr", "1e-3"}, {"data.valid", ""}, {"tiers.new", "1"}};
  other.settings = {{"optimizer.lr", "1e-3"}, {"data.valid", "v"}};
  EXPECT_THAT(page({one, unread}), Not(HasSubstr("What differs")));
  auto const text = page({one, unread, other});
  EXPECT_THAT(text, Not(HasSubstr("optimizer.lr")));
  EXPECT_THAT(text, HasSubstr("data.valid</th><td>not set</td><td>not known</td><td>v</td></tr>"));
  EXPECT_THAT(text, HasSubstr("tiers.new</th><td>1</td><td>not known</td><td>not known</td></tr>"));
}

TEST(PageOf, ARunThatDivergedSaysSinceWhen) {
  report::Run run;
  run.starts.emplace_back().steps = {step(1, unknown), step(2, unknown), step(3, unknown)};
  EXPECT_THAT(page({run}), HasSubstr("<td>2.0000</td>"));
  EXPECT_THAT(page({run}), Not(HasSubstr("skipped")));
  run.starts[0].steps[1].loss = run.starts[0].steps[2].loss = unknown;
  run.starts[0].steps[1].skipped = run.starts[0].steps[2].skipped = true;
  run.starts[0].steps[2].loss_scale = 0.5;
  auto const text = page({run});
  EXPECT_THAT(text, HasSubstr("<td>not finite since step 2</td>"));
  EXPECT_THAT(text, HasSubstr("<th>of these skipped</th>"));
  EXPECT_THAT(text, HasSubstr("<td>2, loss scale 0.5</td>"));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
  run.starts[0].steps[0].loss = unknown;
  EXPECT_THAT(page({run}), HasSubstr("<td>not finite since step 1</td>"));
}

TEST(PageOf, ARunSaysItsTimeWithoutGapsAndTheMeanOfItsRatesByTime) {
  report::Run run;
  run.starts.resize(2);
  run.starts[0].last_at = 10.0;
  run.starts[1].at = 100.0;
  run.starts[1].last_at = 130.0;
  run.starts[0].steps = {step(1, unknown), step(9, unknown)};  // of 1 s and of 9 s
  run.starts[0].steps[0].tflops = 10.0;
  run.starts[0].steps[1].tflops = 1.0;
  EXPECT_THAT(page({run}), AllOf(HasSubstr("<td>40.0 s</td>"), HasSubstr("<td>1.9</td>")));
}

TEST(SpeedOf, ARunIsKnownFromItsFirstStepButNotFromALaterOne) {
  report::Run run;
  run.starts.emplace_back().steps = {step(1, unknown)};
  run.starts[0].steps[0].tokens = 8.0;
  EXPECT_THAT(speed_section({run}), HasSubstr("Tokens per second"));
  run.starts[0].steps[0].number = 2;  // what was counted before is not known
  EXPECT_EQ(speed_section({run}), "");
  run.starts[0].steps.push_back(step(4, unknown));  // the record of step 3 is missing
  run.starts[0].steps.back().tokens = 3.0 * run.starts[0].steps[0].tokens;
  EXPECT_EQ(speed_section({run}), "");
}

TEST(LossSection, IsNotFlattenedByOneStepInAHundred) {
  report::Run run;
  auto& steps = run.starts.emplace_back().steps;
  for (int number = 1; number <= 100; ++number) {
    steps.push_back(step(number, unknown));
    steps.back().loss = 2.0 + 0.01 * number;
  }
  steps[50].loss = 4e6;
  EXPECT_THAT(loss_section({run}), HasSubstr(">2.4</text>"));
}

TEST(LossSection, ComparesRunsByTokensAndByTheTimeThatTheyTrained) {
  report::Run one, other;
  for (std::int64_t const begin : {0, 10}) {  // a second start after a night in the queue
    auto& start = one.starts.emplace_back();
    start.at = begin == 0 ? 0.0 : 30'000.0;
    for (std::int64_t number = begin + 1; number <= begin + 10; ++number) {
      start.steps.push_back(step(number, unknown));
      start.steps.back().tokens = 400.0 * static_cast<double>(number);
      start.steps.back().at = start.last_at = start.at + static_cast<double>(number - begin);
    }
  }
  other.starts.emplace_back().steps = {step(1, unknown)};
  other.starts[0].last_at = 1.0;
  EXPECT_THAT(loss_section({one}), Not(HasSubstr("over tokens")));
  auto const text = loss_section({one, other});
  auto const tokens = text.find("Smoothed loss over tokens");
  auto const time = text.find("Smoothed loss over the time of kept steps");
  ASSERT_LT(tokens, time);
  ASSERT_NE(time, std::string::npos);
  EXPECT_THAT(text.substr(tokens, time - tokens),
              AllOf(HasSubstr(">8000</text>"), Not(HasSubstr(">10k</text>"))));
  auto const in_time = text.substr(time, text.find("Norm of the gradient") - time);
  EXPECT_THAT(in_time, AllOf(HasSubstr(">20</text>"), HasSubstr(">time, s</text>"),
                             Not(HasSubstr(">25</text>"))));
}

TEST(PageOf, ARunOfWeeksIsNoLargerThanItsPictureNeeds) {
  constexpr int starts = 200, steps = 500;
  report::Run run;
  for (int i = 0; i < starts; ++i) {
    Start& start = run.starts.emplace_back();
    start.step = i * steps;
    start.at = static_cast<double>(start.step);
    for (int j = 1; j <= steps; ++j) {
      start.steps.push_back(step(start.step + j, unknown));
      run.saves.push_back({.step = start.step + j, .level = 1, .at = start.at + j});
      run.validations.push_back({start.step + j, 2.0});
    }
    start.last_at = start.at + steps;
    run.saves.push_back({.step = start.step + steps, .level = 2, .at = start.last_at});
  }
  auto const text = page({run});
  EXPECT_LT(text.size(), 600'000U);
  EXPECT_THAT(text,
              AllOf(HasSubstr("validation, a few of many"),
                    HasSubstr("validation loss 2.0000 after step 100000"),
                    HasSubstr("step 500 saved, level 2"), HasSubstr("step 100000 saved, level 1")));
}

TEST(Smooth, HasAGapWhereTheCurveIsNotFinite) {
  auto const smoothed = smooth({{1.0, 2.0}, {2.0, unknown}, {3.0, 2.0}});
  EXPECT_EQ(smoothed.at(0).y, 2.0);
  EXPECT_TRUE(std::isnan(smoothed.at(1).y));
  EXPECT_EQ(smoothed.at(2).y, 2.0);
}

TEST(StorageOf, TransfersThatOverlapHaveTheRateOfAllTogether) {
  report::Run run;
  run.paths = {{.directory = "/nvme",
                .read_bytes = 8e9,
                .read_seconds = 8.0,
                .busy_seconds = 8.0,
                .counted_seconds = 10.0,
                .can_read = 2.0}};
  EXPECT_THAT(storage_section({run}), HasSubstr("1 of 2 GB/s, 8 GB"));
  EXPECT_THAT(storage_section({run}), HasSubstr(">80.0 %<"));
  EXPECT_THAT(storage_section({run}), Not(HasSubstr("overlap")));
  run.paths[0].counted_seconds = 5.0;
  EXPECT_THAT(storage_section({run}), HasSubstr("1.6 of 2 GB/s, 8 GB"));
  EXPECT_THAT(storage_section({run}), HasSubstr(">100 %, transfers overlap 1.6 times<"));
  run.paths[0].counted_seconds = 10.0;
  run.paths[0].sharing_transfers = 2.0;
  EXPECT_THAT(storage_section({run}), HasSubstr("1.6 of 2 GB/s, 8 GB")) << "two at a time";
  EXPECT_THAT(storage_section({run}), HasSubstr(">80.0 %<"));
}

TEST(AchievedOf, IsTheMeanOfTheStepsThatAForecastWasMadeFor) {
  report::Run run;
  run.starts.resize(2);
  run.starts[0].steps = {step(1, unknown), step(2, unknown), step(3, 1.0)};
  run.starts[1].steps = {step(4, 1.0), step(5, 1.0), step(6, 1.0), step(7, unknown)};
  EXPECT_EQ(achieved(run, {.after = 2, .start = 0}).step, 3.0);
  EXPECT_EQ(achieved(run, {.after = 3, .start = 1}).step, 5.5) << "without the first of a start";
  EXPECT_EQ(achieved(run, {.after = 5, .start = 1}).step, 6.0);
  EXPECT_EQ(achieved(run, {.after = 3, .start = 1}).forward, 1.0);
  EXPECT_TRUE(std::isnan(achieved(run, {.after = 6, .start = 1}).step));
  EXPECT_TRUE(std::isnan(achieved(report::Run{}, {}).step));
}

TEST(ForecastOf, ARunIsTheLastOneThatStepsFollowed) {
  report::Run run;
  run.name = "run";
  run.starts.resize(2);
  run.starts[0].steps = {step(1, 1.0), step(2, 1.0)};
  run.forecasts = {{.given = true, .after = 0, .start = 0, .step = 1.0},
                   {.given = true, .after = 2, .start = 1, .step = 9.0}};
  EXPECT_THAT(forecast_section({run}), HasSubstr("2 s (+100.0 %)"));
  EXPECT_THAT(forecast_section({run}),
              HasSubstr("run, from step 2 on, by rates that were given or measured at the start"));
}

TEST(Looks, OfMoreRunsThanColoursDifferByTheirLines) {
  EXPECT_EQ(run_look(0), "c0");
  EXPECT_EQ(run_look(8), "c1 dashed");
  EXPECT_EQ(run_look(14), "c0 dotted");
}

}  // namespace
}  // namespace offstage::report
