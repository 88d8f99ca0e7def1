#include "base/in_threads.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace offstage {
namespace {

TEST(ForEachInThreads, DoesEachOnce) {
  for (std::size_t const count : {0, 1, 2, 100}) {
    std::vector<int> times(count);
    for_each_in_threads(count, [&](std::size_t i) { ++times[i]; });
    EXPECT_EQ(times, std::vector<int>(count, 1));
  }
}

TEST(ForEachInThreads, ThrowsTheFirstErrorAfterAllIsDone) {
  std::vector<int> times(50);
  try {
    for_each_in_threads(times.size(), [&](std::size_t i) {
      ++times[i];
      if (i % 20 == 7) {
        throw std::runtime_error{std::to_string(i)};
      }
    });
    FAIL();
  } catch (std::runtime_error const& error) {
    EXPECT_STREQ(error.what(), "7");
  }
  EXPECT_EQ(times, std::vector<int>(50, 1));
}

}  // namespace
}  // namespace offstage
