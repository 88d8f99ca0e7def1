#include "base/random.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace offstage {
namespace {

using testing::ElementsAre;

// The known answers that Salmon et al. publish for philox4x32-10. Their counter words are ours in
// the order counter low, counter high, stream low, stream high.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_THAT(philox(0, 0, 0), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  std::uint64_t const ones = ~std::uint64_t{0};
  EXPECT_THAT(philox(ones, ones, ones),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(philox(0x299f31d0'a4093822, 0x03707344'13198a2e, 0x85a308d3'243f6a88),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Normal, DependsOnSeedStreamAndIndexAlone) {
  EXPECT_EQ(normal(1, 2, 3), normal(1, 2, 3));
  EXPECT_NE(normal(1, 2, 3), normal(2, 2, 3));
  EXPECT_NE(normal(1, 2, 3), normal(1, 3, 3));
  EXPECT_NE(normal(1, 2, 3), normal(1, 2, 4));
}

TEST(Normal, HasTheMomentsOfAStandardNormal) {
  constexpr int count = 1 << 20;
  double sum{}, squares{}, cubes{}, fourths{}, products{};
  int beyond_two{};
  for (int i = 0; i < count; ++i) {
    double const x = normal(42, 7, static_cast<std::uint64_t>(i));
    double const next = normal(42, 7, static_cast<std::uint64_t>(i) + 1);
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += x * x * x * x;
    products += x * next;
    beyond_two += std::abs(x) > 2.0 ? 1 : 0;
  }
  // Five standard errors each.
  EXPECT_NEAR(sum / count, 0.0, 5.0 / 1024);
  EXPECT_NEAR(squares / count, 1.0, 5.0 * std::sqrt(2.0) / 1024);
  EXPECT_NEAR(cubes / count, 0.0, 5.0 * std::sqrt(15.0) / 1024);
  EXPECT_NEAR(fourths / count, 3.0, 5.0 * std::sqrt(96.0) / 1024);
  EXPECT_NEAR(products / count, 0.0, 5.0 / 1024);
  EXPECT_NEAR(static_cast<double>(beyond_two) / count, 0.0455, 5.0 * 0.21 / 1024);
}

TEST(Normal, ManyAreThoseOfEachIndex) {
  for (std::uint64_t const first : {0U, 1U, 2U, 3U, 4093U}) {
    for (std::size_t const count : {0U, 1U, 2U, 5U, 64U}) {
      std::vector<float> out(count);
      normals(5, 9, first, out);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(out[i], normal(5, 9, first + i)) << first << " + " << i;
      }
    }
  }
}

TEST(Shuffled, IsABijection) {
  for (std::uint64_t const size : {1U, 2U, 3U, 4U, 5U, 16U, 17U, 100U, 1000U, 4097U}) {
    std::vector<bool> seen(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      std::uint64_t const place = shuffled(i, size, 9, 1);
      ASSERT_LT(place, size);
      ASSERT_FALSE(seen[place]) << place << " of " << size << " comes twice";
      seen[place] = true;
    }
  }
}

TEST(Shuffled, DependsOnKeyAndRoundAndMovesMostThings) {
  constexpr std::uint64_t size = 1000;
  int still{}, same_key{}, same_round{};
  for (std::uint64_t i = 0; i < size; ++i) {
    std::uint64_t const place = shuffled(i, size, 9, 1);
    still += place == i ? 1 : 0;
    same_key += place == shuffled(i, size, 8, 1) ? 1 : 0;
    same_round += place == shuffled(i, size, 9, 2) ? 1 : 0;
  }
  // One fixed point is expected of a random permutation; ten is a chance below one in a million.
  EXPECT_LT(still, 10);
  EXPECT_LT(same_key, 10);
  EXPECT_LT(same_round, 10);
}

TEST(Shuffled, LargeSizesStayInside) {
  constexpr std::uint64_t size = (std::uint64_t{1} << 40) + 12345;
  for (std::uint64_t i = size - 100; i < size; ++i) {
    EXPECT_LT(shuffled(i, size, 1, 0), size);
  }
}

}  // namespace
}  // namespace offstage
