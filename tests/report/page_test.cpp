#include "report/page.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "report/sections.hpp"

namespace offstage::report {
namespace {

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

TEST(AchievedOf, IsTheMeanOfPredictedStepsWithoutTheFirstOfAStart) {
  report::Run run;
  run.starts.resize(2);
  run.starts[0].steps = {step(1, 1.0), step(2, unknown), step(3, 1.0)};
  run.starts[1].steps = {step(4, 1.0), step(5, 1.0)};
  EXPECT_EQ(achieved(run).step, 4.0);
  EXPECT_EQ(achieved(run).forward, 1.0);
  EXPECT_TRUE(std::isnan(achieved(report::Run{}).step));
}

TEST(Looks, OfMoreRunsThanColoursDifferByTheirLines) {
  EXPECT_EQ(run_look(0), "c0");
  EXPECT_EQ(run_look(8), "c1 dashed");
  EXPECT_EQ(run_look(14), "c0 dotted");
}

}  // namespace
}  // namespace offstage::report
