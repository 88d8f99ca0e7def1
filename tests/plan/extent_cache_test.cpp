#include "plan/extent_cache.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"

namespace offstage::plan {
namespace {

constexpr auto none_taken = [](std::int64_t) { return false; };

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
  for (std::int64_t const key : {0, 1, 2, 0}) {
    cache.insert(key);
  }
  cache.begin_pass();
  EXPECT_EQ(cache.victim(none_taken), 1);
  EXPECT_EQ(cache.victim([](std::int64_t key) { return key == 1; }), 2);
  EXPECT_FALSE(cache.victim([](std::int64_t) { return true; }));
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

TEST(ExtentCache, OfHighestKeepsTheLowestKeysWhateverTheOrder) {
  ExtentCache cache{4, 2, Evict::highest};
  cache.insert(1);
  cache.insert(0);
  cache.begin_pass();
  cache.insert(3);
  EXPECT_EQ(cache.victim(none_taken), 3) << "the pass still needs the others";
  cache.remove(3);
  cache.insert(0);
  cache.insert(1);
  cache.insert(2);
  EXPECT_EQ(cache.victim(none_taken), 2) << "not the first of those that the pass is done with";
  EXPECT_EQ(cache.victim([](std::int64_t key) { return key == 2; }), 1);
  EXPECT_FALSE(cache.victim([](std::int64_t) { return true; }));
}

TEST(ExtentCache, RestoresAKeyToWhereItWas) {
  ExtentCache cache{4, 2, Evict::farthest};
  cache.insert(0);
  cache.insert(1);
  cache.insert(2);
  auto const one = cache.commit_of(1);
  EXPECT_THROW((void)cache.commit_of(3), PreconditionError);
  cache.begin_pass();
  cache.insert(1);
  EXPECT_EQ(cache.victim(none_taken), 1);
  cache.restore(one);
  EXPECT_FALSE(cache.victim(none_taken)) << "the pass needs it again";
  cache.remove(1);
  cache.restore(one);
  EXPECT_EQ(cache.size(), 3);
  EXPECT_EQ(cache.commit_of(1).number, one.number);
  ExtentCache by_age{4, 2, Evict::oldest};
  by_age.insert(1);
  auto const first = by_age.commit_of(1);
  by_age.insert(0);
  by_age.insert(1);
  by_age.insert(2);
  EXPECT_EQ(by_age.victim(none_taken), 0);
  by_age.restore(first);
  EXPECT_EQ(by_age.victim(none_taken), 1);
}

}  // namespace
}  // namespace offstage::plan
