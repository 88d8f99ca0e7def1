#include "base/nearest.hpp"

#include <gtest/gtest.h>

#include <array>

#include "base/error.hpp"

namespace offstage {
namespace {

std::array<std::string, 3> const words{"train", "probe", "plan"};

TEST(Nearest, CountsInsertionsDeletionsAndReplacements) {
  EXPECT_EQ(nearest("trian", words), "train");
  EXPECT_EQ(nearest("robe", words), "probe");
  EXPECT_EQ(nearest("plans", words), "plan");
  EXPECT_EQ(nearest("plan", words), "plan");
}

TEST(Nearest, TakesTheFirstOfEquals) {
  EXPECT_EQ(nearest("", std::array<std::string, 2>{"ab", "cd"}), "ab");
}

TEST(Nearest, NeedsAWord) {
  EXPECT_THROW(static_cast<void>(nearest("a", {})), PreconditionError);
}

}  // namespace
}  // namespace offstage
