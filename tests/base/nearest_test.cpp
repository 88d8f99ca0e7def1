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

TEST(Nearest, ASwapOfNeighboursIsOneChange) {
  EXPECT_EQ(nearest_within("trian", words, 1), "train");
  EXPECT_EQ(nearest_within("trani", words, 1), "train");
  EXPECT_EQ(nearest_within("rtani", words, 1), "");
  EXPECT_EQ(nearest_within("rtani", words, 2), "train");
}

TEST(Nearest, WithinALimitMayBeNone) {
  EXPECT_EQ(nearest_within("plans", words, 1), "plan");
  EXPECT_EQ(nearest_within("plan", words, 0), "plan");
  EXPECT_EQ(nearest_within("plans", words, 0), "");
}

TEST(Nearest, TakesTheFirstOfEquals) {
  EXPECT_EQ(nearest("", std::array<std::string, 2>{"ab", "cd"}), "ab");
}

TEST(Nearest, AWordThatMayBeMeantBeginsSoOrTakesFewChanges) {
  EXPECT_EQ(near_word("pro", words), "probe");
  EXPECT_EQ(near_word("trian", words), "train");
  EXPECT_EQ(near_word("run", words), "");
  EXPECT_EQ(near_word("", words), "");
  std::array<std::string, 2> const options{"--vocab", "--from"};
  EXPECT_EQ(near_word("-v", options), "--vocab");
  EXPECT_EQ(near_word("--form", options), "--from");
  EXPECT_EQ(near_word("--model", options), "");
}

TEST(Nearest, NeedsAWord) {
  EXPECT_THROW(static_cast<void>(nearest("a", {})), PreconditionError);
}

}  // namespace
}  // namespace offstage
