#include "parameters/read_plan.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <vector>

#include "base/error.hpp"

namespace offstage::parameters {
namespace {

std::vector<state::Subgroup> subgroups_with(std::vector<std::int64_t> const& sizes) {
  std::vector<state::Subgroup> subgroups;
  std::int64_t begin = 0;
  for (std::int64_t const size : sizes) {
    auto& next = subgroups.emplace_back();
    next.index = std::ssize(subgroups) - 1;
    next.begin = begin;
    next.size = size;
    begin += size;
  }
  return subgroups;
}

/// Keys in the order in which they are fetched.
std::vector<tiers::Key> fetched(std::vector<std::vector<ReadPiece>> const& plan) {
  std::vector<tiers::Key> keys;
  for (auto const& pieces : plan) {
    for (ReadPiece const& piece : pieces) {
      if (piece.fetches) {
        keys.push_back(piece.key);
      }
    }
  }
  return keys;
}

/// Every element comes once, from its extent, and one lease at a time is held.
void expect_sound(std::vector<ShardRange> const& ranges,
                  std::vector<state::Subgroup> const& subgroups) {
  auto const plan = plan_reads(ranges, subgroups);
  ASSERT_EQ(plan.size(), ranges.size());
  std::optional<tiers::Key> held;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    std::vector<int> seen(static_cast<std::size_t>(ranges[i].end - ranges[i].begin));
    for (ReadPiece const& piece : plan[i]) {
      EXPECT_EQ(piece.fetches, !held) << "range " << i;
      EXPECT_TRUE(piece.fetches || held == piece.key);
      auto const& subgroup = subgroups[static_cast<std::size_t>(piece.key)];
      EXPECT_LE(piece.in_extent + piece.elements, subgroup.size);
      EXPECT_EQ(subgroup.begin + piece.in_extent, ranges[i].begin + piece.in_range);
      for (std::int64_t at = piece.in_range; at < piece.in_range + piece.elements; ++at) {
        ++seen[static_cast<std::size_t>(at)];
      }
      held = piece.ends ? std::nullopt : std::optional{piece.key};
    }
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
  }
  EXPECT_FALSE(held);
}

TEST(PlanReads, FetchesEachExtentOnceGoingUpOrDown) {
  auto const subgroups = subgroups_with({10, 10, 10, 10});
  std::vector<ShardRange> const up{{0, 15}, {15, 18}, {18, 35}, {35, 40}};
  std::vector<ShardRange> const down{{35, 40}, {18, 35}, {15, 18}, {0, 15}};
  using Keys = std::vector<tiers::Key>;
  EXPECT_EQ(fetched(plan_reads(up, subgroups)), (Keys{0, 1, 2, 3}));
  EXPECT_EQ(fetched(plan_reads(down, subgroups)), (Keys{3, 2, 1, 0}));
  expect_sound(up, subgroups);
  expect_sound(down, subgroups);
}

TEST(PlanReads, OneLargeExtentServesEveryRange) {
  auto const subgroups = subgroups_with({100});
  EXPECT_EQ(fetched(plan_reads(std::vector<ShardRange>{{0, 30}, {30, 60}, {60, 100}, {30, 60}},
                               subgroups)),
            (std::vector<tiers::Key>{0}));
}

TEST(PlanReads, ARankThatOwnsNothingOfALayerKeepsItsLeaseForTheNext) {
  auto const subgroups = subgroups_with({10, 10});
  std::vector<ShardRange> const ranges{{5, 5}, {0, 5}, {5, 5}, {5, 20}, {20, 20}};
  EXPECT_EQ(fetched(plan_reads(ranges, subgroups)), (std::vector<tiers::Key>{0, 1}));
  expect_sound(ranges, subgroups);
  EXPECT_TRUE(fetched(plan_reads(std::vector<ShardRange>{{0, 0}}, {})).empty());
}

TEST(PlanReads, RefusesARangeThatNoSubgroupCovers) {
  auto const subgroups = subgroups_with({10, 10});
  EXPECT_THROW((void)plan_reads(std::vector<ShardRange>{{15, 21}}, subgroups), PreconditionError);
  EXPECT_THROW((void)plan_reads(std::vector<ShardRange>{{20, 21}}, subgroups), PreconditionError);
}

TEST(PlanReads, IsSoundForAnyRanges) {
  std::mt19937 random{1};
  for (int round = 0; round < 300; ++round) {
    std::vector<std::int64_t> sizes(1 + random() % 8);
    for (auto& size : sizes) {
      size = 1 + static_cast<std::int64_t>(random() % 12);
    }
    auto const subgroups = subgroups_with(sizes);
    auto const all = subgroups.back().begin + subgroups.back().size;
    std::vector<ShardRange> ranges(random() % 12);
    for (auto& range : ranges) {
      range.begin = static_cast<std::int64_t>(random()) % all;
      range.end = range.begin + static_cast<std::int64_t>(random()) % (all - range.begin + 1);
    }
    expect_sound(ranges, subgroups);
  }
}

}  // namespace
}  // namespace offstage::parameters
