#include "train/report/wear.hpp"

#include <gtest/gtest.h>

namespace offstage::train {
namespace {

TEST(Wear, IsWhatAPathTakesInAStepAndInADay) {
  // 1 GiB in 8.64 s is 10,000 GiB a day.
  EXPECT_EQ(wear_in_words(GiB, Seconds{8.64}, 0), "1.00 GiB written a step, 9.77 TiB a day");
}

TEST(Wear, SaysHowLongAnEnduranceLasts) {
  auto const lasts = [](Bytes endurance) {
    std::string const text = wear_in_words(GiB, Seconds{8.64}, endurance);
    return text.substr(text.find(", "));
  };
  EXPECT_EQ(lasts(50'000 * GiB), ", 9.77 TiB a day, which uses up endurance in 5.0 days");
  EXPECT_EQ(lasts(600'000 * GiB), ", 9.77 TiB a day, which uses up endurance in 60 days");
  EXPECT_EQ(lasts(7'300'000 * GiB), ", 9.77 TiB a day, which uses up endurance in 2.0 years");
}

TEST(Wear, OfAPathThatTakesNothingHasNoEnd) {
  EXPECT_EQ(wear_in_words(0, Seconds{1.0}, GiB), "0 B written a step, 0 B a day");
}

}  // namespace
}  // namespace offstage::train
