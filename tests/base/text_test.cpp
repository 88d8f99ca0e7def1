#include "base/text.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace offstage {
namespace {

TEST(TakeUntil, TakesPartAfterPart) {
  std::string_view text = "a:b::c";
  EXPECT_EQ(take_until(':', text), "a");
  EXPECT_EQ(take_until(':', text), "b");
  EXPECT_EQ(take_until(':', text), "");
  EXPECT_EQ(take_until(':', text), "c");
  EXPECT_TRUE(text.empty());
  EXPECT_EQ(take_until(':', text), "");
}

TEST(NumberIn, IsThatOfTheWholeText) {
  EXPECT_EQ(number_in<int>("-12"), -12);
  EXPECT_EQ(number_in<std::uint64_t>("ff", 16), 255U);
  EXPECT_EQ(number_in<double>("3e-4"), 3e-4);
  for (std::string_view const none : {"", " 1", "1 ", "+1", "1x", "2147483648"}) {
    EXPECT_EQ(number_in<int>(none), std::nullopt) << none;
  }
}

}  // namespace
}  // namespace offstage
