#include "base/rate.hpp"

#include <gtest/gtest.h>

namespace offstage {
namespace {

TEST(FormatRate, ChoosesTheUnitAndShowsThreeFigures) {
  EXPECT_EQ(format_rate(0.0), "0.00 kB/s");
  EXPECT_EQ(format_rate(4.7e5), "470 kB/s");
  EXPECT_EQ(format_rate(9.994e5), "999 kB/s");
  EXPECT_EQ(format_rate(9.996e5), "1.00 MB/s");
  EXPECT_EQ(format_rate(4.2e6), "4.20 MB/s");
  EXPECT_EQ(format_rate(6.9e9), "6.90 GB/s");
  EXPECT_EQ(format_rate(2.5e15), "2500 TB/s");
}

}  // namespace
}  // namespace offstage
