#include "plan/split.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <random>

#include "base/error.hpp"

namespace offstage::plan {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double gb_per_s = 1e9;
/// MLP Table 1, Testbed-1: NVMe and VAST.
std::vector<PathRate> const testbed_1{{6.9 * gb_per_s, 5.3 * gb_per_s, false},
                                      {3.6 * gb_per_s, 3.6 * gb_per_s, false}};

std::string usage_error(std::string const& text) {
  try {
    (void)parse_split(text);
  } catch (UsageError const& error) {
    return error.what();
  }
  return "no UsageError";
}

TEST(FirstPath, TakesAllAsLongAsItIsOpen) {
  auto const policy = parse_split("first");
  EXPECT_FALSE(needs_rates(policy));
  auto const weights = split_weights(policy, std::vector<PathRate>(3));
  EXPECT_THAT(weights, ::testing::ElementsAre(1.0, 0.0, 0.0));
  std::vector<std::int64_t> const counts{100, 0, 0};
  EXPECT_EQ(next_path(weights, counts, {true, true, true}), 0U);
  EXPECT_EQ(next_path(weights, counts, {false, true, true}), 1U);
  EXPECT_TRUE(takes_extents(policy, 0));
  EXPECT_FALSE(takes_extents(policy, 1));
  EXPECT_FALSE(takes_extents(parse_split("2:0"), 1));
  EXPECT_TRUE(takes_extents(parse_split("auto"), 1));
}

TEST(ParseSplit, ReadsRulesAndWeights) {
  EXPECT_EQ(parse_split("auto").rule, SplitRule::automatic);
  EXPECT_EQ(parse_split("paper").rule, SplitRule::paper);
  auto const fixed = parse_split("2:1.5:0");
  EXPECT_EQ(fixed.rule, SplitRule::fixed);
  EXPECT_THAT(fixed.weights, ElementsAre(2.0, 1.5, 0.0));
  EXPECT_THAT(parse_split("1").weights, ElementsAre(1.0));
}

TEST(ParseSplit, RefusesWhatIsNone) {
  for (char const* text : {"", ":", "2:", ":1", "2:1:", "2,1", "Auto", "2:x", " 2:1", "0x2:1"}) {
    EXPECT_THAT(usage_error(text), HasSubstr("2:1")) << text;
  }
  for (char const* text : {"-1:2", "nan", "inf:1", "1e400:1", "1e7:1", "1e-9:1", "1e-400:1"}) {
    EXPECT_THAT(usage_error(text), HasSubstr("must be 0 or from 1e-06 to 1000000")) << text;
  }
  EXPECT_THAT(usage_error("0:0"), HasSubstr("above 0"));
}

TEST(SplitWeights, OfThePaperAreTheSmallerRates) {
  auto const weights = split_weights(parse_split("paper"), testbed_1);
  EXPECT_THAT(weights, ElementsAre(DoubleNear(5.3 / 8.9, 1e-12), DoubleNear(3.6 / 8.9, 1e-12)));
}

TEST(SplitWeights, OfHalfDuplexPathsCountReadAndWrite) {
  auto const weights = split_weights(parse_split("auto"), testbed_1);
  EXPECT_NEAR(weights[0] / weights[1], 2.9975 / 1.8, 1e-4);
  EXPECT_NEAR(weights[0] + weights[1], 1.0, 1e-12);
}

TEST(SplitWeights, OfFullDuplexPathsAreTheSmallerRates) {
  std::vector<PathRate> const rates{{6.0, 2.0, true}, {4.0, 4.0, false}};
  EXPECT_THAT(split_weights(parse_split("auto"), rates),
              ElementsAre(DoubleNear(0.5, 1e-12), DoubleNear(0.5, 1e-12)));
}

TEST(SplitWeights, AsGivenNeedNoRates) {
  std::vector<PathRate> const unknown(2);
  EXPECT_THAT(split_weights(parse_split("3:1"), unknown), ElementsAre(0.75, 0.25));
  EXPECT_THAT(split_weights(parse_split("0:1"), unknown), ElementsAre(0.0, 1.0));
  EXPECT_THROW((void)split_weights(parse_split("1:1:1"), unknown), PreconditionError);
}

TEST(SplitWeights, NeedPositiveRates) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  for (PathRate const bad : {PathRate{0.0, 1.0}, PathRate{1.0, 0.0}, PathRate{nan, 1.0}}) {
    std::vector<PathRate> const rates{{1.0, 1.0}, bad};
    EXPECT_THROW((void)split_weights(parse_split("auto"), rates), PreconditionError);
    EXPECT_THROW((void)split_weights(parse_split("paper"), rates), PreconditionError);
  }
  EXPECT_THAT(split_weights(parse_split("auto"), {}), IsEmpty());
}

/// Where n extents go, one after the other.
std::vector<std::int64_t> fill(std::vector<double> const& weights, std::int64_t n) {
  std::vector<std::int64_t> counts(weights.size());
  for (std::int64_t extent = 0; extent < n; ++extent) {
    ++counts[next_path(weights, counts, std::vector<bool>(weights.size(), true))];
  }
  return counts;
}

TEST(NextPath, InterleavesTwoToOne) {
  std::vector<double> const weights{2.0 / 3.0, 1.0 / 3.0};
  std::vector<std::int64_t> counts(2);
  std::vector<std::size_t> order;
  for (int extent = 0; extent < 6; ++extent) {
    order.push_back(next_path(weights, counts, {true, true}));
    ++counts[order.back()];
  }
  EXPECT_THAT(order, ElementsAre(0, 0, 1, 0, 0, 1));
  EXPECT_THAT(counts, ElementsAre(4, 2));
}

/// The time of the path that ends last, over all ways to place n extents.
double least_makespan(std::vector<double> const& weights, std::int64_t n, std::size_t path = 0) {
  if (path + 1 == weights.size()) {
    return static_cast<double>(n) / weights[path];
  }
  double best = std::numeric_limits<double>::infinity();
  for (std::int64_t here = 0; here <= n; ++here) {
    best = std::min(best, std::max(static_cast<double>(here) / weights[path],
                                   least_makespan(weights, n - here, path + 1)));
  }
  return best;
}

TEST(NextPath, EndsAsEarlyAsAnyPlacementCan) {
  std::mt19937_64 random{1};
  std::uniform_real_distribution<double> rate{0.1, 10.0};
  for (int round = 0; round < 50; ++round) {
    std::vector<PathRate> rates(1 + random() % 4);
    for (PathRate& each : rates) {
      each = {rate(random), rate(random), false};
    }
    auto const weights = split_weights({}, rates);
    for (std::int64_t n = 1; n <= 12; ++n) {
      auto const counts = fill(weights, n);
      double makespan = 0.0;
      for (std::size_t path = 0; path < weights.size(); ++path) {
        makespan = std::max(makespan, static_cast<double>(counts[path]) / weights[path]);
      }
      ASSERT_NEAR(makespan, least_makespan(weights, n), 1e-9 * makespan);
    }
  }
}

TEST(NextPath, TakesNoClosedPath) {
  std::vector<double> const weights{0.9, 0.1};
  std::vector<std::int64_t> const counts{0, 100};
  EXPECT_EQ(next_path(weights, counts, {false, true}), 1U);
  EXPECT_EQ(next_path(weights, counts, {false, false}), 2U);
  EXPECT_EQ(next_path({}, {}, {}), 0U);
}

TEST(NextPath, TakesAPathWithoutWeightOnlyIfNoOtherIsOpen) {
  std::vector<double> const weights{0.0, 1.0, 0.0};
  EXPECT_EQ(next_path(weights, std::vector<std::int64_t>{0, 1000, 0}, {true, true, true}), 1U);
  EXPECT_EQ(next_path(weights, std::vector<std::int64_t>{0, 0, 0}, {true, false, true}), 0U);
  EXPECT_EQ(next_path(weights, std::vector<std::int64_t>{1, 0, 0}, {true, false, true}), 2U);
}

/// Where n extents of each rank go, all ranks together.
std::vector<std::int64_t> fill_node(std::vector<double> const& weights, std::int64_t n,
                                    std::int64_t ranks) {
  std::vector<std::int64_t> sum(weights.size());
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::int64_t> counts(weights.size());
    for (std::int64_t extent = 0; extent < n; ++extent) {
      ++counts[next_path(weights, counts, std::vector<bool>(weights.size(), true), {rank, ranks})];
    }
    for (std::size_t path = 0; path < weights.size(); ++path) {
      sum[path] += counts[path];
    }
  }
  return sum;
}

TEST(NextPath, RanksTogetherDivideAsOneWithAllTheirExtentsWould) {
  // Two extents of each of four ranks on paths of 5:3: each alone would take one of each.
  EXPECT_THAT(fill_node({0.625, 0.375}, 2, 4), ElementsAre(5, 3));
  EXPECT_THAT(fill_node({0.9, 0.1}, 1, 10), ElementsAre(9, 1));
  EXPECT_THAT(fill_node({0.5, 0.3, 0.2}, 5, 2), ElementsAre(5, 3, 2));
  EXPECT_THAT(fill_node({0.0, 1.0}, 3, 2), ElementsAre(0, 6));
}

TEST(NextPath, RanksTogetherMissTheBestPlacementByLittle) {
  std::mt19937_64 random{3};
  std::uniform_real_distribution<double> rate{0.1, 10.0};
  for (int round = 0; round < 100; ++round) {
    std::vector<PathRate> rates(2 + random() % 3);
    for (PathRate& each : rates) {
      each = {rate(random), rate(random), false};
    }
    auto const weights = split_weights({}, rates);
    auto const ranks = static_cast<std::int64_t>(1 + random() % 8);
    auto const n = static_cast<std::int64_t>(1 + random() % 40);
    auto const apart = fill_node(weights, n, ranks);
    auto const together = fill(weights, n * ranks);
    for (std::size_t path = 0; path < weights.size(); ++path) {
      // With three paths and more a quota may shrink while it is filled.
      ASSERT_NEAR(static_cast<double>(apart[path]), static_cast<double>(together[path]),
                  weights.size() == 2 ? 0.0 : static_cast<double>(ranks));
    }
  }
}

TEST(NextPath, OfARankTakesNoClosedPathAndLeavesNoneEmptyForGood) {
  std::vector<double> const weights{0.9, 0.1};
  std::vector<std::int64_t> const counts{0, 100};
  EXPECT_EQ(next_path(weights, counts, {false, true}, {1, 4}), 1U);
  EXPECT_EQ(next_path(weights, counts, {true, true}, {1, 4}), 0U);
  EXPECT_EQ(next_path(weights, counts, {false, false}, {1, 4}), 2U);
  EXPECT_THROW((void)next_path(weights, counts, {true, true}, {4, 4}), PreconditionError);
}

/// One step: every extent leaves its path and is flushed to the one that next_path names.
void flush_all(std::vector<std::size_t>& homes, std::vector<double> const& weights,
               std::vector<bool> const& open) {
  std::vector<std::int64_t> counts(weights.size());
  for (std::size_t const home : homes) {
    ++counts[home];
  }
  for (std::size_t& home : homes) {
    --counts[home];
    home = next_path(weights, counts, open);
    ++counts[home];
  }
}

TEST(NextPath, MovesExtentsWithinAStepWhenWeightsChange) {
  std::vector<std::size_t> homes(90);
  std::vector<double> weights{2.0 / 3.0, 1.0 / 3.0};
  flush_all(homes, weights, {true, true});
  EXPECT_EQ(std::ranges::count(homes, 1U), 30);
  auto const before = homes;
  flush_all(homes, weights, {true, true});
  EXPECT_EQ(homes, before) << "nothing moves where the weights stay";
  weights = {0.5, 0.5};
  flush_all(homes, weights, {true, true});
  EXPECT_EQ(std::ranges::count(homes, 1U), 45);
  flush_all(homes, weights, {false, true});
  EXPECT_EQ(std::ranges::count(homes, 1U), 90) << "a path that is left out ends empty";
}

TEST(BandwidthBound, OfOnePathIsReadAndWriteTogetherOrTheLongerOfBoth) {
  std::vector<PathRate> rates{{4.0, 2.0, false}};
  EXPECT_DOUBLE_EQ(bandwidth_bound(8, 8, rates).count(), 6.0);
  rates[0].full_duplex = true;
  EXPECT_DOUBLE_EQ(bandwidth_bound(8, 8, rates).count(), 4.0);
  EXPECT_DOUBLE_EQ(bandwidth_bound(80, 8, rates).count(), 20.0);
}

TEST(BandwidthBound, OfNothingIsNoTime) {
  EXPECT_EQ(bandwidth_bound(0, 0, {}).count(), 0.0);
  EXPECT_THROW((void)bandwidth_bound(1, 0, {}), PreconditionError);
  EXPECT_THROW((void)bandwidth_bound(1, 0, std::vector<PathRate>(1)), PreconditionError);
}

TEST(BandwidthBound, ReadsAnExtentWhereItWasWritten) {
  // One reads ten times faster, the other writes ten times faster: each extent takes both its time.
  std::vector<PathRate> const rates{{10.0, 1.0, false}, {1.0, 10.0, false}};
  EXPECT_DOUBLE_EQ(bandwidth_bound(100, 100, rates).count(), 55.0);
  EXPECT_NEAR(bandwidth_bound(100, 0, rates).count(), 100.0 / 11.0, 1e-12);
}

TEST(BandwidthBound, IsThatOfTheAutomaticSplit) {
  auto const weights = split_weights({}, testbed_1);
  double const bound = bandwidth_bound(1'000'000, 1'000'000, testbed_1).count();
  for (std::size_t path = 0; path < testbed_1.size(); ++path) {
    double const whole = 1e6 / testbed_1[path].read + 1e6 / testbed_1[path].write;
    EXPECT_NEAR(weights[path] * whole, bound, 1e-12);
  }
}

TEST(BandwidthBound, IsTheBestOfAllSplits) {
  constexpr int parts = 100;
  std::mt19937_64 random{7};
  std::uniform_real_distribution<double> rate{1.0, 10.0};
  for (int round = 0; round < 40; ++round) {
    std::vector<PathRate> rates(3);
    for (PathRate& each : rates) {
      each = {rate(random), rate(random), random() % 3 == 0};
    }
    auto const reads = static_cast<Bytes>(random() % 1000 + 1);
    auto const writes = static_cast<Bytes>(random() % 1000 + 1);
    auto const time = [&](std::size_t path, int share) {
      double const reading = static_cast<double>(reads * share) / parts / rates[path].read;
      double const writing = static_cast<double>(writes * share) / parts / rates[path].write;
      return rates[path].full_duplex ? std::max(reading, writing) : reading + writing;
    };
    double best = std::numeric_limits<double>::infinity();
    for (int a = 0; a <= parts; ++a) {
      for (int b = 0; a + b <= parts; ++b) {
        best = std::min(best, std::max({time(0, a), time(1, b), time(2, parts - a - b)}));
      }
    }
    double const bound = bandwidth_bound(reads, writes, rates).count();
    ASSERT_LE(bound, best * (1.0 + 1e-9));
    ASSERT_GE(bound, best * 0.9);  // the grid is that coarse
  }
}

}  // namespace
}  // namespace offstage::plan
