#include "tiers/extent_cache.hpp"

#include <gtest/gtest.h>

namespace offstage::tiers {
namespace {

constexpr auto none_taken = [](Key) { return false; };

TEST(ExtentCache, HasNoVictimWithinItsLimit) {
  ExtentCache cache{4, 2, Evict::oldest};
  cache.insert(0);
  cache.insert(1);
  EXPECT_FALSE(cache.victim(none_taken));
  cache.insert(1);
  EXPECT_EQ(cache.size(), 2) << "a key is in it once";
  EXPECT_FALSE(cache.victim(none_taken));
}

TEST(ExtentCache, GivesTheOldestThatIsNotTaken) {
  ExtentCache cache{4, 2, Evict::oldest};
  for (Key const key : {0, 1, 2, 0}) {
    cache.insert(key);
  }
  cache.begin_pass();
  EXPECT_EQ(cache.victim(none_taken), 1);
  EXPECT_EQ(cache.victim([](Key key) { return key == 1; }), 2);
  EXPECT_FALSE(cache.victim([](Key) { return true; }));
  cache.remove(1);
  EXPECT_FALSE(cache.victim(none_taken));
}

TEST(ExtentCache, OfFarthestGivesNothingThatThePassStillNeeds) {
  ExtentCache cache{4, 2, Evict::farthest};
  cache.insert(0);
  cache.insert(1);
  cache.begin_pass();
  cache.insert(2);
  EXPECT_EQ(cache.victim(none_taken), 2) << "the committed extent itself if there is no other";
  cache.remove(2);
  cache.insert(0);
  cache.insert(3);
  EXPECT_EQ(cache.victim(none_taken), 0) << "of those that the pass is done with, the first";
}

}  // namespace
}  // namespace offstage::tiers
