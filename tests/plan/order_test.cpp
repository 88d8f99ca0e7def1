#include "plan/order.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace offstage::plan {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<bool> const none(5, false);

TEST(UpdateOrder, AscendsInEveryStep) {
  EXPECT_THAT(update_order(UpdateOrder::ascending, 0, none, false), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(update_order(UpdateOrder::ascending, 1, none, false), ElementsAre(0, 1, 2, 3, 4));
}

TEST(UpdateOrder, AlternatesWithEverySecondStepDescending) {
  EXPECT_THAT(update_order(UpdateOrder::alternate, 0, none, false), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(update_order(UpdateOrder::alternate, 1, none, false), ElementsAre(4, 3, 2, 1, 0));
  EXPECT_THAT(update_order(UpdateOrder::alternate, 2, none, false), ElementsAre(0, 1, 2, 3, 4));
}

TEST(UpdateOrder, SpreadsThoseInMemoryAmongTheOthers) {
  EXPECT_THAT(
      update_order(UpdateOrder::alternate, 0, {true, true, false, false, false, false}, true),
      ElementsAre(0, 2, 3, 1, 4, 5));
  EXPECT_THAT(
      update_order(UpdateOrder::alternate, 1, {false, false, false, false, true, true}, true),
      ElementsAre(5, 3, 2, 4, 1, 0));
}

TEST(UpdateOrder, StandsAsItIsWithoutSpread) {
  EXPECT_THAT(update_order(UpdateOrder::ascending, 0, {false, true, true, false}, false),
              ElementsAre(0, 1, 2, 3));
}

TEST(UpdateOrder, SpreadChangesNothingWhereAllAreAlike) {
  EXPECT_THAT(update_order(UpdateOrder::alternate, 1, none, true), ElementsAre(4, 3, 2, 1, 0));
  EXPECT_THAT(update_order(UpdateOrder::ascending, 0, std::vector<bool>(3, true), true),
              ElementsAre(0, 1, 2));
  EXPECT_THAT(update_order(UpdateOrder::ascending, 0, {}, true), IsEmpty());
}

/// Every index once, each kind in order, and nowhere two more in memory than evenness allows.
TEST(UpdateOrder, SpreadsEvenlyWhateverIsInMemory) {
  for (unsigned mask = 0; mask < 1U << 10; ++mask) {
    std::vector<bool> in_memory(10);
    for (unsigned bit = 0; bit < 10; ++bit) {
      in_memory[bit] = (mask >> bit & 1U) != 0;
    }
    auto const order = update_order(UpdateOrder::ascending, 0, in_memory, true);
    ASSERT_EQ(order.size(), 10U);
    auto const total = std::ranges::count(in_memory, true);
    std::int64_t last_near = -1, last_far = -1, near = 0, position = 0;
    for (std::int64_t const index : order) {
      bool const is_near = in_memory[static_cast<std::size_t>(index)];
      std::int64_t& last = is_near ? last_near : last_far;
      ASSERT_GT(index, last);
      last = index;
      near += is_near ? 1 : 0;
      ++position;
      ASSERT_GE(near * 10, position * total);
      ASSERT_LT((near - 1) * 10, position * total);
    }
  }
}

}  // namespace
}  // namespace offstage::plan
