#include "platform/cpu/affinity.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace offstage::cpu {
namespace {

TEST(Affinity, ThisProcessMayRunSomewhere) {
  auto const cpus = allowed_cpus();
  EXPECT_FALSE(cpus.empty());
  EXPECT_TRUE(std::ranges::is_sorted(cpus));
}

TEST(Affinity, RangesAreWrittenAsTasksetWritesThem) {
  EXPECT_EQ(format_cpus({}), "");
  EXPECT_EQ(format_cpus({5}), "5");
  EXPECT_EQ(format_cpus({0, 1}), "0-1");
  EXPECT_EQ(format_cpus({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(format_cpus({1, 3, 5, 6}), "1,3,5-6");
}

TEST(Affinity, TheHostHasAName) {
  EXPECT_FALSE(host_name().empty());
}

}  // namespace
}  // namespace offstage::cpu
