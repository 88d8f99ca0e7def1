#include "data/mixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <optional>

#include "data/dataset.hpp"
#include "formats.hpp"

namespace offstage::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;

auto source(std::string const& path, std::optional<double> weight) {
  return AllOf(Field(&Source::path, path), Field(&Source::weight, weight));
}

TEST(ParseSources, TakesPathsWithAndWithoutWeights) {
  EXPECT_THAT(parse_sources("a.bin"), ElementsAre(source("a.bin", {})));
  EXPECT_THAT(parse_sources("a.bin:0.7,b c.bin:3e-1,d:1"),
              ElementsAre(source("a.bin", 0.7), source("b c.bin", 0.3), source("d", 1.0)));
}

TEST(ParseSources, TakesWeightsOfAllPathsOrOfNone) {
  for (std::string const text : {"a.bin:1,b.bin", "b.bin,a.bin:1", "a.bin:1,c.bin:2,b.bin"}) {
    EXPECT_THAT(usage_error([&] { (void)parse_sources(text); }),
                HasSubstr("a.bin has a weight, and b.bin has none"))
        << text;
  }
}

TEST(ParseSources, FilesInTurnHaveNoWeights) {
  EXPECT_THAT(parse_sources_in_turn("a.bin,b.bin"),
              ElementsAre(source("a.bin", {}), source("b.bin", {})));
  EXPECT_THAT(usage_error([] { (void)parse_sources_in_turn("a.bin:1,b.bin:2"); }),
              HasSubstr("the weight 2 of b.bin has no effect"));
}

TEST(ParseSources, AColonInADirectoryIsNoWeight) {
  EXPECT_THAT(parse_sources("/a:b/c.bin"), ElementsAre(source("/a:b/c.bin", {})));
  EXPECT_THAT(parse_sources("/a:b/c:d.bin:2"), ElementsAre(source("/a:b/c:d.bin", 2.0)));
  EXPECT_THAT(usage_error([] { (void)parse_sources("c:d.bin"); }),
              AllOf(HasSubstr("'d.bin'"), HasSubstr("c:0.5"), HasSubstr(":1")));
}

TEST(ParseSources, BlanksRoundCommasAreNoPartOfAPath) {
  EXPECT_THAT(parse_sources(" a.bin:0.7 ,\tb c.bin:1 "),
              ElementsAre(source("a.bin", 0.7), source("b c.bin", 1.0)));
  EXPECT_THAT(parse_sources("\tb c.bin , d "), ElementsAre(source("b c.bin", {}), source("d", {})));
}

TEST(ParseSources, RefusesEmptyPaths) {
  for (std::string const text :
       {"", ",", "a,", ",a", "a,,b", ":1", "a,:0.5", " ", "a, ", " ,a", "a, \t,b"}) {
    EXPECT_THAT(usage_error([&] { (void)parse_sources(text); }), HasSubstr("is empty")) << text;
  }
}

TEST(ParseSources, RefusesWeightsThatAreNotAboveZero) {
  for (std::string const weight :
       {"0", "-1", "nan", "inf", "", "1e", "0x1", " 1", "1 2", "1e999"}) {
    EXPECT_THAT(usage_error([&] { (void)parse_sources("a:" + weight + ",b"); }),
                AllOf(HasSubstr("'" + weight + "'"), HasSubstr("no weight above 0")))
        << weight;
  }
}

TEST(ParseSources, RefusesAWeightThatIsNothingBesideTheOthers) {
  EXPECT_EQ(parse_sources("a:1e-8,b:1").size(), 2U);
  EXPECT_EQ(parse_sources("a:1e300,b:1e300,c:1e300").size(), 3U);
  EXPECT_THAT(usage_error([] { (void)parse_sources("a:1,b:1e-10"); }),
              AllOf(HasSubstr("1e-10 of b"), HasSubstr("billionth")));
  EXPECT_THAT(usage_error([] { (void)parse_sources("a:1e308,b:1e-308"); }), HasSubstr("billionth"));
}

class Mixtures : public testing::TestWithParam<std::vector<double>> {};

TEST_P(Mixtures, EveryPrefixOfBlocksHasItsSharesWithinAHalfPerHalving) {
  auto const& weights = GetParam();
  double const sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double const bound = std::ceil(std::log2(weights.size())) / 2 + 1e-6;
  Mixture const mixture{weights};
  std::vector<std::int64_t> given(weights.size());
  for (std::int64_t s = 0; s < 300 * Mixture::block; ++s) {
    ++given[mixture.pick(s, 5).file];
    for (std::size_t i = 0; (s + 1) % Mixture::block == 0 && i < weights.size(); ++i) {
      auto const share = weights[i] / sum * static_cast<double>(s + 1);
      ASSERT_LE(std::abs(static_cast<double>(given[i]) - share), bound) << i << " " << s;
    }
  }
}

TEST_P(Mixtures, EachFileCountsItsSamplesInOrder) {
  Mixture const mixture{GetParam()};
  std::vector<std::int64_t> given(GetParam().size());
  for (std::int64_t s = 0; s < 100 * Mixture::block; ++s) {
    auto const [file, index] = mixture.pick(s, 9);
    ASSERT_EQ(index, given[file]++);
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, Mixtures,
                         testing::Values(std::vector{1.0}, std::vector{1.0, 1.0},
                                         std::vector{0.7, 0.3}, std::vector{1.0, 1.0, 1.0},
                                         std::vector{0.7, 0.2, 0.05, 0.05},
                                         std::vector{1.0, 1e-3, 1e-3, 1e-3},
                                         std::vector{1e-5, 1.0, 1e-5, 3.0, 1e-5},
                                         std::vector(300, 0.1)));

TEST(Mixture, AWeightOfAMillionthIsSeenOnceInAMillion) {
  Mixture const mixture{std::vector{1.0, 1e-6}};
  // Rounded to nearest: the k-th one comes where its share passes k + 1/2.
  for (std::int64_t const k : {0, 1, 2, 1'000'000}) {
    std::int64_t const due = 500'000 + k * 1'000'001;
    std::vector<std::int64_t> seen;
    for (std::int64_t s = due - 200; s < due + 200; ++s) {
      if (auto const pick = mixture.pick(s, 1); pick.file == 1) {
        seen.push_back(pick.index);
      }
    }
    EXPECT_THAT(seen, ElementsAre(k));
  }
}

TEST(Mixture, TheOrderDependsOnSeedAndSampleAlone) {
  std::vector<double> const weights{0.5, 0.3, 0.2};
  Mixture const mixture{weights};
  auto const files = [](Mixture const& m, std::uint64_t seed) {
    std::vector<std::size_t> result;
    for (std::int64_t s = 0; s < 1'000; ++s) {
      result.push_back(m.pick(s, seed).file);
    }
    return result;
  };
  EXPECT_EQ(files(mixture, 1), files(Mixture{weights}, 1));
  EXPECT_NE(files(mixture, 1), files(mixture, 2));
  // Nothing is counted from the start: late samples are as cheap as early ones.
  auto const late = mixture.pick(std::int64_t{1} << 60, 1);
  EXPECT_NEAR(static_cast<double>(late.index) * 0x1p-60, weights[late.file], 1e-12);
}

TEST(Mixture, RefusesWhatParseSourcesWouldHaveRefused) {
  EXPECT_THROW(Mixture{std::vector<double>{}}, PreconditionError);
  EXPECT_THROW((Mixture{std::vector{1.0, 0.0}}), PreconditionError);
  EXPECT_THROW((Mixture{std::vector{1.0, 1e-12}}), PreconditionError);
  EXPECT_THROW((void)(Mixture{std::vector{1.0}}.pick(-1, 1)), PreconditionError);
}

TEST(Windows, AreSpreadOverSourcesByTheirSizes) {
  auto const spread = [](std::int64_t windows, std::vector<std::int64_t> const& sizes) {
    return spread_windows(windows, sizes);
  };
  EXPECT_THAT(spread(10, {100, 0, 300}), ElementsAre(3, 0, 7));
  EXPECT_THAT(spread(1, {100, 0, 300}), ElementsAre(1, 0, 1));
  EXPECT_THAT(spread(400, {100, 0, 300}), ElementsAre(100, 0, 300));
  EXPECT_THAT(spread(1'000, {100, 0, 300}), ElementsAre(100, 0, 300));
  EXPECT_THAT(spread(5, {1, 1, 1'000'000}), ElementsAre(1, 1, 3));
  EXPECT_THAT(spread(7, {9}), ElementsAre(7));
  std::vector<std::int64_t> const sizes{3, 1, 17, 2, 40, 8};
  for (std::int64_t windows = 6; windows <= 71; ++windows) {
    auto const taken = spread(windows, sizes);
    EXPECT_EQ(std::accumulate(taken.begin(), taken.end(), std::int64_t{0}), windows);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_TRUE(taken[i] >= 1 && taken[i] <= sizes[i]) << windows;
    }
  }
}

}  // namespace
}  // namespace offstage::data
