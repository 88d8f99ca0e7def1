#include "plan/places_in_turn.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

namespace offstage::plan {
namespace {

using testing::ElementsAre;

/// Subgroups of one size, and blocks, over the same elements.
struct Shard {
  std::vector<Range> subgroups;
  std::vector<std::int64_t> blocks;

  template <class Size>
  Shard(std::int64_t elements, std::int64_t subgroup, Size const& size_of_block) {
    for (std::int64_t begin = 0; begin < elements; begin += subgroup) {
      subgroups.push_back({begin, std::min(subgroup, elements - begin)});
    }
    for (std::int64_t begin = 0; begin < elements; begin += size_of_block()) {
      blocks.push_back(begin);
    }
  }
  [[nodiscard]] std::int64_t elements() const {
    return subgroups.back().begin + subgroups.back().count;
  }
  [[nodiscard]] std::int64_t block_of(std::int64_t element) const {
    return std::ranges::upper_bound(blocks, element) - blocks.begin() - 1;
  }
};

std::vector<std::int64_t> begins_of(std::vector<PlaceInTurn> const& places) {
  std::vector<std::int64_t> begins;
  std::ranges::transform(places, std::back_inserter(begins), &PlaceInTurn::begin);
  return begins;
}
std::vector<std::int64_t> afters_of(std::vector<PlaceInTurn> const& places) {
  std::vector<std::int64_t> afters;
  std::ranges::transform(places, std::back_inserter(afters), &PlaceInTurn::after);
  return afters;
}

TEST(PlacesInTurn, BlocksHaveThemOneAfterTheOther) {
  Shard const shard{40, 5, [] { return 10; }};
  auto const one = places_in_turn(shard.subgroups, shard.blocks, 10);
  EXPECT_THAT(begins_of(one), ElementsAre(5, 0, 5, 0, 5, 0, 5, 0));
  EXPECT_THAT(afters_of(one), ElementsAre(10, 15, 20, 25, 30, 35, -1, -1));
  auto const two = places_in_turn(shard.subgroups, shard.blocks, 20);
  EXPECT_THAT(begins_of(two), ElementsAre(15, 10, 5, 0, 15, 10, 5, 0));
  EXPECT_THAT(afters_of(two), ElementsAre(20, 25, 30, 35, -1, -1, -1, -1));
}

TEST(PlacesInTurn, ASubgroupOfSeveralBlocksHasAPlaceInEach) {
  Shard const shard{30, 25, [] { return 10; }};
  auto const places = places_in_turn(shard.subgroups, shard.blocks, 10);
  ASSERT_EQ(places.size(), 4U);  // 10, 10 and 5 elements, and 5 of the other one
  EXPECT_THAT(begins_of(places), ElementsAre(0, 0, 5, 0));
  EXPECT_THAT(afters_of(places), ElementsAre(10, 20, -1, -1));
}

TEST(PlacesInTurn, ABlockThatHasNoRoomHasSome) {
  Shard const shard{20, 5, [] { return 10; }};
  auto const places = places_in_turn(shard.subgroups, shard.blocks, 5);
  ASSERT_EQ(places.size(), 2U);
  EXPECT_EQ(places[0].elements.begin, 5);
  EXPECT_EQ(places[1].elements.begin, 15);
  EXPECT_EQ(places[0].after, 15);
}

TEST(PlacesInTurn, NoTwoLiveInOnePlace) {
  std::mt19937 random{5};
  auto const draw = [&](int least, int most) {
    return std::uniform_int_distribution<std::int64_t>{least, most}(random);
  };
  for (int trial = 0; trial < 2000; ++trial) {
    // Blocks are a model's: of one size, and some larger ones. Some subgroups stay elsewhere.
    auto const usual = draw(1, 20);
    auto const size_of_block = [&] { return draw(1, 5) == 1 ? draw(1, 60) : usual; };
    Shard shard{draw(1, 200), draw(1, 40), size_of_block};
    auto const elements = shard.elements();
    std::erase_if(shard.subgroups, [&](Range const&) { return draw(1, 4) == 1; });
    auto const room = draw(0, 120);
    auto const places = places_in_turn(shard.subgroups, shard.blocks, room);
    std::int64_t placed = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
      Range const& here = places[i].elements;
      placed += here.count;
      EXPECT_GE(places[i].begin, 0);
      EXPECT_LE(places[i].begin + here.count, room);
      EXPECT_EQ(shard.block_of(here.begin), shard.block_of(here.begin + here.count - 1));
      for (std::size_t before = i + 1; before < places.size(); ++before) {
        Range const& there = places[before].elements;
        if (places[i].begin < places[before].begin + there.count &&
            places[before].begin < places[i].begin + here.count) {
          EXPECT_GT(shard.block_of(there.begin), shard.block_of(here.begin))
              << "it is not complete";
          EXPECT_TRUE(places[i].after >= 0 && places[i].after <= there.begin);
        }
      }
      EXPECT_TRUE(places[i].after < 0 ||
                  shard.block_of(places[i].after) > shard.block_of(here.begin));
    }
    if (room >= largest_block(shard.blocks, elements)) {
      std::int64_t all = 0;
      for (Range const& subgroup : shard.subgroups) {
        all += subgroup.count;
      }
      EXPECT_EQ(placed, all);
    }
  }
}

}  // namespace
}  // namespace offstage::plan
