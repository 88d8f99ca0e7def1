#include "generate/sampler.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/error.hpp"

namespace offstage::generate {
namespace {

constexpr int draws = 20'000;

/// How often each token is drawn in `draws` positions.
std::vector<double> shares(std::vector<float> const& logits, Sampling const& sampling) {
  std::vector<double> counts(logits.size());
  for (std::uint64_t position = 0; position < draws; ++position) {
    counts[static_cast<std::size_t>(sample(logits, sampling, position))] += 1.0 / draws;
  }
  return counts;
}

TEST(Sampler, GreedyTakesTheLargestAndOfEqualsTheLowestId) {
  EXPECT_EQ(sample(std::vector{0.0F, 3.0F, -1.0F, 3.0F}, {}, 0), 1);
  EXPECT_EQ(sample(std::vector{-5.0F}, {}, 7), 0);
}

TEST(Sampler, TemperatureFollowsTheSoftmax) {
  std::vector<float> const logits{0.0F, 1.0F, 2.0F};
  for (double const temperature : {0.5, 1.0, 2.0}) {
    auto const found = shares(logits, {.temperature = temperature});
    double sum = 0.0;
    for (float const logit : logits) {
      sum += std::exp(logit / temperature);
    }
    for (std::size_t i = 0; i < logits.size(); ++i) {
      EXPECT_NEAR(found[i], std::exp(logits[i] / temperature) / sum, 0.015);
    }
  }
}

TEST(Sampler, TopKLeavesTheOthersOutAndOfEqualsTheHigherIds) {
  auto const found = shares({1.0F, 5.0F, 1.0F, 5.0F, 1.0F}, {.temperature = 10.0, .top_k = 3});
  EXPECT_GT(found[0], 0.2);
  EXPECT_GT(found[1], 0.3);
  EXPECT_GT(found[3], 0.3);
  EXPECT_EQ(found[2] + found[4], 0.0);
  EXPECT_EQ(sample(std::vector{0.0F, 2.0F, 2.0F}, {.temperature = 100.0, .top_k = 1}, 3), 1);
}

TEST(Sampler, TopPLeavesTheLikeliestThatHaveTheShareTogether) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  std::vector<float> const logits{std::log(2.0F), std::log(8.0F), std::log(2.0F), std::log(4.0F)};
  auto const found = shares(logits, {.temperature = 1.0, .top_p = 0.74});
  EXPECT_NEAR(found[1], 2.0 / 3.0, 0.015);
  EXPECT_NEAR(found[3], 1.0 / 3.0, 0.015);
  EXPECT_EQ(found[0] + found[2], 0.0);
  auto const more = shares(logits, {.temperature = 1.0, .top_p = 0.8});  // of equals the lower id
  EXPECT_GT(more[0], 0.1);
  EXPECT_EQ(more[2], 0.0);
  auto const half = shares({1.0F, 1.0F}, {.temperature = 1.0, .top_p = 0.5});
  EXPECT_EQ(half[1], 0.0) << "the first has the share alone";
  EXPECT_EQ(shares(logits, {.temperature = 1.0, .top_p = 1.0}),
            shares(logits, {.temperature = 1.0}));
  EXPECT_EQ(sample(logits, {.temperature = 1.0, .top_p = 1e-9}, 3), 1);
}

// Equal probabilities: those that stay are the first ids.
TEST(Sampler, TopPOfALargeVocabularyTakesOfEqualsTheLowerIds) {
  std::vector<float> logits(20'000, 0.0F);
  logits[15'000] = 1.0F;
  Sampling const sampling{.temperature = 1.0, .top_p = 0.3};
  auto const kept = static_cast<std::int32_t>(0.3 * (19'999 + std::exp(1.0)) - std::exp(1.0)) + 1;
  std::int32_t highest = 0;
  for (std::uint64_t position = 0; position < 2000; ++position) {
    auto const token = sample(logits, sampling, position);
    EXPECT_TRUE(token < kept || token == 15'000) << token;
    highest = token == 15'000 ? highest : std::max(highest, token);
  }
  EXPECT_GT(highest, kept - 100);
}

TEST(Sampler, TakesMoreThanAllForAll) {
  EXPECT_EQ(shares({0.0F, 1.0F}, {.temperature = 1.0, .top_k = 99}),
            shares({0.0F, 1.0F}, {.temperature = 1.0}));
}

TEST(Sampler, DependsOnSeedAndPositionAlone) {
  std::vector<float> const logits(1000, 0.0F);
  Sampling const one{.temperature = 1.0, .seed = 1};
  EXPECT_EQ(sample(logits, one, 5), sample(logits, one, 5));
  int same_position = 0;
  int same_seed = 0;
  for (std::uint64_t i = 0; i < 100; ++i) {
    same_position += sample(logits, one, i) == sample(logits, {.temperature = 1.0, .seed = 2}, i);
    same_seed += sample(logits, one, i) == sample(logits, one, i + 1);
  }
  EXPECT_LT(same_position, 5);
  EXPECT_LT(same_seed, 5);
}

TEST(Sampler, StandsExtremeLogitsAndTemperatures) {
  constexpr float most = std::numeric_limits<float>::max();
  std::vector<float> const far{-most, 0.0F, most};
  for (double const temperature : {1e-300, 1.0, 1000.0}) {
    EXPECT_EQ(sample(far, {.temperature = temperature}, 0), 2) << temperature;
  }
}

TEST(Sampler, RefusesWhatIsNotFinite) {
  for (float const bad : {std::nanf(""), INFINITY, -INFINITY}) {
    try {
      (void)sample(std::vector{0.0F, 1.0F, bad}, {}, 0);
      FAIL() << "took " << bad;
    } catch (DataError const& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("logit of token 2 is"));
    }
  }
}

}  // namespace
}  // namespace offstage::generate
