#include "kernels/optimizer/working_copy.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.hpp"
#include "kernels/optimizer_support.hpp"

namespace offstage::kernels {
namespace {

/// Each upper half with lower halves around the tie and at the ends; no NaN but the canonical one.
std::vector<float> all_halves() {
  std::vector<float> all;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (std::uint32_t const lower : {0x0000U, 0x0001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      auto const value = std::bit_cast<float>(upper << 16 | lower);
      if (value == value) {
        all.push_back(value);
      }
    }
  }
  all.push_back(std::bit_cast<float>(0x7FC00000U));
  return all;
}

struct Split {
  std::vector<std::uint16_t> low;
  std::vector<bfloat16> copy;
};

TEST(WorkingCopy, IsTheNearestNumberAndOfTwoTheOneAwayFromZero) {
  std::vector<float> const p = all_halves();
  std::vector<bfloat16> copy(p.size());
  host::round_parameters(p, copy);
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (!(std::abs(p[i]) <= 0x1.FEp127F)) {
      continue;  // beyond the largest number
    }
    double const exact = p[i];
    double const got = to_float(copy[i]);
    auto const lower_neighbour =
        std::bit_cast<float>(std::bit_cast<std::uint32_t>(p[i]) & 0xFFFF0000U);
    double const below = lower_neighbour;  // towards zero
    double const place =
        std::abs(static_cast<double>(std::bit_cast<float>(
                     (std::bit_cast<std::uint32_t>(p[i]) & 0xFFFF0000U) + 0x00010000U)) -
                 below);
    double const from_below = std::abs(exact - below);
    double const expected = from_below * 2.0 >= place ? below + std::copysign(place, exact) : below;
    ASSERT_EQ(got, expected) << p[i];
    ASSERT_EQ(std::signbit(got), std::signbit(exact)) << p[i];
  }
}

TEST(WorkingCopy, BeyondTheLargestNumberIsInfiniteAndNanIsCanonical) {
  std::vector<float> const p{std::numeric_limits<float>::max(), -0x1.FFp127F,
                             std::numeric_limits<float>::infinity(),
                             std::bit_cast<float>(0xFFC12345U)};
  std::vector<bfloat16> copy(p.size());
  host::round_parameters(p, copy);
  EXPECT_EQ(copy, (std::vector<bfloat16>{{0x7F80}, {0xFF80}, {0x7F80}, {0x7FC0}}));
}

TEST(WorkingCopy, SplitAndJoinedParametersHaveTheirBits) {
  std::vector<float> const p = all_halves();
  for (bool const by_ref : {true, false}) {
    Split split{std::vector<std::uint16_t>(p.size()), std::vector<bfloat16>(p.size())};
    std::vector<bfloat16> rounded(p.size());
    std::vector<float> joined(p.size());
    by_ref ? ref::split_parameters(p, split.low, split.copy)
           : host::split_parameters(p, split.low, split.copy);
    by_ref ? ref::round_parameters(p, rounded) : host::round_parameters(p, rounded);
    by_ref ? ref::join_parameters(split.copy, split.low, joined)
           : host::join_parameters(split.copy, split.low, joined);
    expect_same_bits(split.copy, rounded, "working copy");
    expect_same_bits(joined, p, "joined");
  }
}

TEST(WorkingCopy, HasTheBitsOfRefForAnyNumberOfAnyNumbers) {
  for (Values const kind : all_kinds) {
    for (std::size_t const count : odd_lengths) {
      auto const p = make_values<float>(count, kind, 1);
      Split expected{std::vector<std::uint16_t>(count), std::vector<bfloat16>(count)};
      Split got = expected;
      ref::split_parameters(p, expected.low, expected.copy);
      host::split_parameters(p, got.low, got.copy);
      EXPECT_EQ(got.low, expected.low);
      expect_same_bits(got.copy, expected.copy, "working copy");
    }
  }
}

TEST(WorkingCopy, OfOtherTypesIsRoundedToNearestEven) {
  std::vector<float> const p{0x1.002p0F, 0x1.006p0F, -65520.0F};
  std::vector<float> floats(3);
  std::vector<float16> halves(3);
  host::round_parameters(p, floats);
  host::round_parameters(p, halves);
  EXPECT_EQ(floats, p);
  EXPECT_EQ(halves, (std::vector<float16>{{0x3C00}, {0x3C02}, {0xFC00}}));
}

TEST(WorkingCopy, RejectsViewsOfDifferentLength) {
  std::vector<float> p(3);
  std::vector<std::uint16_t> low(3);
  std::vector<bfloat16> copy(3), short_copy(2);
  EXPECT_THROW(host::round_parameters(p, short_copy), PreconditionError);
  EXPECT_THROW(host::split_parameters(p, low, short_copy), PreconditionError);
  EXPECT_THROW(host::split_parameters(p, std::span{low}.first(2), copy), PreconditionError);
  EXPECT_THROW(host::join_parameters(short_copy, low, p), PreconditionError);
  EXPECT_THROW(ref::join_parameters(copy, std::span{low}.first(2), p), PreconditionError);
}

}  // namespace
}  // namespace offstage::kernels
