#include "train/memory/crowding.hpp"

#include <gmock/gmock.h>

namespace offstage::train {
namespace {

using testing::HasSubstr;

TEST(Crowding, IsWhenTheMainThreadWaitsForMoreThanAFifthOfTheTime) {
  EXPECT_EQ(Crowding::judge(Seconds{0.0}, Seconds{5.0}), "");
  EXPECT_EQ(Crowding::judge(Seconds{0.9}, Seconds{5.0}), "");
  EXPECT_THAT(Crowding::judge(Seconds{2.5}, Seconds{5.0}),
              HasSubstr("in the last 5 s the main thread waited 50 % of the time for a core"));
}

TEST(Crowding, FirstLookIsTheBeginning) {
  Crowding crowding;
  EXPECT_EQ(crowding.look(), "");
  EXPECT_EQ(crowding.look(), "") << "too soon";
}

}  // namespace
}  // namespace offstage::train
