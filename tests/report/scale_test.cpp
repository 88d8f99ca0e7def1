#include "report/scale.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

namespace offstage::report {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> labels(Range range, Spacing spacing, int wanted) {
  std::vector<std::string> all;
  for (Tick const& tick : ticks(range, spacing, wanted)) {
    all.push_back(tick.label);
  }
  return all;
}

TEST(Ticks, AreRoundValuesWithinTheRange) {
  EXPECT_THAT(labels({0.0, 10.0}, Spacing::linear, 5), ElementsAre("0", "2", "4", "6", "8", "10"));
  EXPECT_THAT(labels({1.73, 2.12}, Spacing::linear, 4), ElementsAre("1.8", "1.9", "2.0", "2.1"));
  EXPECT_THAT(labels({-0.1, 0.1}, Spacing::linear, 4),
              ElementsAre("-0.10", "-0.05", "0.00", "0.05", "0.10"));
  EXPECT_THAT(labels({0.0, 40'000.0}, Spacing::linear, 4),
              ElementsAre("0", "10k", "20k", "30k", "40k"));
  EXPECT_THAT(labels({0.0, 3e-4}, Spacing::linear, 3),
              ElementsAre("0.0000", "0.0001", "0.0002", "0.0003"));
}

TEST(Ticks, OfALogarithmicRangeArePowersOfTen) {
  EXPECT_THAT(labels({0.01, 100.0}, Spacing::logarithmic, 5),
              ElementsAre("0.01", "0.1", "1", "10", "100"));
  EXPECT_THAT(labels({0.5, 5.0}, Spacing::logarithmic, 5), ElementsAre("0.5", "1", "2", "5"));
}

TEST(Widened, HasTicksAtBothEnds) {
  for (auto const spacing : {Spacing::linear, Spacing::logarithmic}) {
    for (Range const range : {Range{0.31, 8.2}, {2.0, 2.0}, {1e-5, 0.3}, {0.97, 1.04}}) {
      auto const wide = widened(range, spacing, 5);
      auto const all = ticks(wide, spacing, 5);
      ASSERT_GE(all.size(), 2U);
      EXPECT_LE(wide.low, range.low);
      EXPECT_GE(wide.high, range.high);
      EXPECT_NEAR(all.front().value, wide.low, 1e-9 * wide.high);
      EXPECT_NEAR(all.back().value, wide.high, 1e-9 * wide.high);
    }
  }
}

TEST(RangeOf, LeavesOutWhatIsNotFinite) {
  Range range;
  range.take(NAN);
  EXPECT_TRUE(range.empty());
  range.take(2.0);
  range.take(-INFINITY);
  range.take(1.0);
  EXPECT_EQ(range.low, 1.0);
  EXPECT_EQ(range.high, 2.0);
}

TEST(InShort, HasThreeFigures) {
  EXPECT_EQ(in_short(0.12345), "0.123");
  EXPECT_EQ(in_short(4567.0), "4567");
  EXPECT_EQ(in_short(45'678.0), "45.7k");
  EXPECT_EQ(in_short(3.2e6), "3.2M");
  EXPECT_EQ(in_short(NAN), "-");
}

TEST(TimeUnits, AreThoseOfWhichThereAreSome) {
  EXPECT_STREQ(time_unit(90.0).name, "s");
  EXPECT_STREQ(time_unit(3600.0).name, "min");
  EXPECT_STREQ(time_unit(86'400.0).name, "h");
  EXPECT_STREQ(time_unit(1e6).name, "d");
}

}  // namespace
}  // namespace offstage::report
