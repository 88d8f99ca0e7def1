#include "report/plot.hpp"

#include <gmock/gmock.h>

#include <cmath>

namespace offstage::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Escaped, TextCanNeitherOpenATagNorEndAnAttribute) {
  EXPECT_EQ(escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
  EXPECT_EQ(escaped("a\x1b\xff"), "a\\x1b\\xff");
}

// 480 x 250 with margins of 70, 16, 12 and 46: the inside is 394 x 192.
TEST(PlotOf, APointIsWhereItsAxesSay) {
  Plot plot{"t",
            {.label = "x", .range = {0.0, 100.0}, .fits = true},
            {.label = "y", .range = {0.0, 10.0}, .fits = true},
            {.width = 480.0, .height = 250.0}};
  plot.line({{0.0, 0.0}, {50.0, 10.0}, {100.0, 5.0}}, "c0");
  EXPECT_THAT(plot.text(),
              HasSubstr(R"(<path class="line c0" d="M70.00 204.00L267.00 12.00L464.00 108.00"/>)"));
  EXPECT_THAT(plot.text(), HasSubstr(R"(<text class="tick x" x="70.00" y="223.00">0</text>)"));
  EXPECT_THAT(plot.text(), HasSubstr(R"(<text class="tick y" x="62.00" y="208.00">0</text>)"));
}

TEST(PlotOf, ALineIsInterruptedWhereThereIsNoFigure) {
  Plot plot{"t",
            {.label = "x", .range = {0.0, 2.0}, .fits = true},
            {.label = "y", .range = {0.0, 1.0}, .fits = true}};
  plot.line({{0.0, 1.0}, {1.0, NAN}, {2.0, 1.0}}, "c0");
  EXPECT_THAT(plot.text(), HasSubstr("d=\"M70.00 12.00M944.00 12.00\""));
}

TEST(PlotOf, NothingFiniteIsDrawnAsNothing) {
  Plot plot{"t", {.label = "x", .range = {}}, {.label = "y", .range = {}}};
  plot.line({{NAN, 1.0}}, "c0");
  plot.mark({1.0, NAN}, Mark::circle, "c0", "");
  EXPECT_THAT(plot.text(), Not(HasSubstr("line c0")));
  EXPECT_THAT(plot.text(), Not(HasSubstr("nan")));
}

TEST(BarsOf, AreAsLongAsTheirValuesAndHaveTheirLimits) {
  auto const text =
      bars("t", "GB/s",
           {{.label = "a", .look = "c0", .value = 1.0, .words = "1", .limits = {{2.0, "ink", ""}}},
            {.label = "b", .look = "c1", .value = NAN, .words = "nothing", .limits = {}}},
           500.0);
  EXPECT_THAT(text, HasSubstr("<rect class=\"bar c0\""));
  EXPECT_THAT(text, Not(HasSubstr("<rect class=\"bar c1\"")));
  EXPECT_THAT(text, HasSubstr("<path class=\"limit ink\""));
  EXPECT_THAT(text, HasSubstr(">nothing</text>"));
}

TEST(BarsOf, WithoutAnyFigureHaveAnAxis) {
  auto const text = bars(
      "t", "GB/s", {{.label = "a", .look = "c0", .value = NAN, .words = "nothing", .limits = {}}});
  EXPECT_THAT(text, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace offstage::report
