#include "train/crowding.hpp"

#include <gmock/gmock.h>

namespace offstage::train {
namespace {

using testing::HasSubstr;

TEST(Crowding, IsWhenThreadsWaitForMoreThanAFifthOfTheirTime) {
  EXPECT_EQ(Crowding::judge(Seconds{0.0}, Seconds{5.0}, 4), "");
  EXPECT_EQ(Crowding::judge(Seconds{3.9}, Seconds{5.0}, 4), "");
  EXPECT_THAT(
      Crowding::judge(Seconds{10.0}, Seconds{5.0}, 4),
      HasSubstr("in the last 5 s the 4 threads of this rank waited 50 % of the time for a core"));
}

TEST(Crowding, FirstLookIsTheBeginning) {
  Crowding crowding{1};
  EXPECT_EQ(crowding.look(), "");
  EXPECT_EQ(crowding.look(), "") << "too soon";
}

}  // namespace
}  // namespace offstage::train
