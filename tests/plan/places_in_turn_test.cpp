#include "plan/places_in_turn.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace offstage::plan {
namespace {

/// Subgroups of one size, and blocks of one size, over the same elements.
struct Shard {
  std::vector<Range> subgroups;
  std::vector<std::int64_t> blocks;

  Shard(std::int64_t elements, std::int64_t subgroup, std::int64_t block) {
    for (std::int64_t begin = 0; begin < elements; begin += subgroup) {
      subgroups.push_back({begin, std::min(subgroup, elements - begin)});
    }
    for (std::int64_t begin = 0; begin < elements; begin += block) {
      blocks.push_back(begin);
    }
  }
  [[nodiscard]] std::int64_t elements() const {
    return subgroups.back().begin + subgroups.back().count;
  }
  [[nodiscard]] std::int64_t first_block(std::size_t i) const {
    return block_of(subgroups[i].begin);
  }
  [[nodiscard]] std::int64_t last_block(std::size_t i) const {
    return block_of(subgroups[i].begin + subgroups[i].count - 1);
  }

 private:
  [[nodiscard]] std::int64_t block_of(std::int64_t element) const {
    return std::ranges::upper_bound(blocks, element) - blocks.begin() - 1;
  }
};

TEST(PlacesInTurn, TwoBlocksHaveAllOneAfterTheOther) {
  Shard const shard{40, 5, 10};
  auto const places = places_in_turn(shard.subgroups, shard.blocks, 20);
  std::vector<std::int64_t> begins;
  std::vector<std::int64_t> after;
  for (auto const& place : places) {
    begins.push_back(place.begin);
    after.push_back(place.after);
  }
  EXPECT_EQ(begins, (std::vector<std::int64_t>{15, 10, 5, 0, 15, 10, 5, 0}));
  EXPECT_EQ(after, (std::vector<std::int64_t>{4, 5, 6, 7, -1, -1, -1, -1}));
}

TEST(PlacesInTurn, ABlockThatHasNoRoomHasSomePlaces) {
  Shard const shard{20, 5, 10};
  auto const places = places_in_turn(shard.subgroups, shard.blocks, 5);
  EXPECT_EQ(places[3].begin, 0);
  EXPECT_LT(places[2].begin, 0) << "the other one is of the same block";
  EXPECT_EQ(places[1].begin, 0);
  EXPECT_EQ(places[1].after, 3);
}

TEST(PlacesInTurn, NoTwoLiveInOnePlace) {
  std::mt19937 random{5};
  auto const draw = [&](int least, int most) {
    return std::uniform_int_distribution<std::int64_t>{least, most}(random);
  };
  for (int trial = 0; trial < 2000; ++trial) {
    auto const block = draw(1, 20);
    Shard const shard{draw(1, 200), draw(1, 9), block};
    auto const room = draw(0, static_cast<int>(3 * block + 20));
    auto const places = places_in_turn(shard.subgroups, shard.blocks, room);
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (places[i].begin < 0) {
        continue;
      }
      EXPECT_LE(places[i].begin + shard.subgroups[i].count, room);
      for (std::size_t before = i + 1; before < places.size(); ++before) {
        bool const overlap =
            places[before].begin >= 0 &&
            places[i].begin < places[before].begin + shard.subgroups[before].count &&
            places[before].begin < places[i].begin + shard.subgroups[i].count;
        if (overlap) {
          EXPECT_GT(shard.first_block(before), shard.last_block(i)) << "it is not complete yet";
          EXPECT_TRUE(places[i].after >= 0 && places[i].after <= static_cast<std::int64_t>(before));
        }
      }
      EXPECT_TRUE(places[i].after < 0 || places[i].after > static_cast<std::int64_t>(i));
    }
    auto const enough = room_in_turn(shard.blocks, shard.elements(), shard.subgroups[0].count);
    EXPECT_TRUE(room < enough ||
                std::ranges::none_of(places, [](auto const& p) { return p.begin < 0; }));
  }
}

}  // namespace
}  // namespace offstage::plan
