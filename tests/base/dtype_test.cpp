#include "base/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace offstage {
namespace {

float from_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

TEST(Bfloat16, EveryValueSurvivesTheWayThroughFloat) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    bfloat16 const value{static_cast<std::uint16_t>(bits)};
    float const wide = to_float(value);
    if (std::isnan(wide)) {
      ASSERT_EQ(to_bf16(wide).bits, bf16_canonical_nan) << bits;
    } else {
      ASSERT_EQ(to_bf16(wide), value) << bits;
    }
  }
}

TEST(Bfloat16, TiesGoToTheEvenNeighbour) {
  EXPECT_EQ(to_bf16(from_bits(0x3F808000)).bits, 0x3F80);  // halfway, even below
  EXPECT_EQ(to_bf16(from_bits(0x3F818000)).bits, 0x3F82);  // halfway, even above
  EXPECT_EQ(to_bf16(from_bits(0x3F808001)).bits, 0x3F81);  // just above halfway
  EXPECT_EQ(to_bf16(from_bits(0x3F817FFF)).bits, 0x3F81);  // just below
  EXPECT_EQ(to_bf16(from_bits(0xBF808000)).bits, 0xBF80);  // the sign does not matter
}

TEST(Bfloat16, SubnormalsAreKept) {
  EXPECT_EQ(to_bf16(from_bits(0x00010000)).bits, 0x0001);
  EXPECT_EQ(to_bf16(from_bits(0x00008001)).bits, 0x0001);
  EXPECT_EQ(to_bf16(from_bits(0x00008000)).bits, 0x0000);  // halfway to the smallest
  EXPECT_EQ(to_float(bfloat16{0x0001}), from_bits(0x00010000));
}

TEST(Bfloat16, EveryNanIsTheCanonicalOne) {
  for (std::uint32_t const bits :
       {0x7F800001U, 0x7FC00000U, 0x7FFFFFFFU, 0xFF800001U, 0xFFFFFFFFU}) {
    EXPECT_EQ(to_bf16(from_bits(bits)).bits, bf16_canonical_nan) << bits;
  }
}

TEST(Bfloat16, InfinityStaysAndTheLargestFloatsRoundToIt) {
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::infinity()).bits, 0x7F80);
  EXPECT_EQ(to_bf16(-std::numeric_limits<float>::infinity()).bits, 0xFF80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(to_bf16(from_bits(0x7F7F7FFF)).bits, 0x7F7F);
}

TEST(DType, NamesAndSizes) {
  EXPECT_STREQ(name_of(DType::bf16), "bf16");
  EXPECT_STREQ(name_of(DType::fp32), "fp32");
  EXPECT_EQ(bytes_of(DType::bf16), 2);
  EXPECT_EQ(bytes_of(DType::fp32), 4);
  EXPECT_EQ(dtype_of<bfloat16>(), DType::bf16);
  EXPECT_EQ(dtype_of<float>(), DType::fp32);
}

TEST(DType, StoreRoundsAndLoadWidens) {
  EXPECT_EQ(store<bfloat16>(1.0), (bfloat16{0x3F80}));
  EXPECT_EQ(load(store<bfloat16>(1.00390625F)), 1.0F);
  EXPECT_EQ(store<float>(0.1), 0.1F);
  EXPECT_EQ(store<double>(0.1), 0.1);
}

}  // namespace
}  // namespace offstage
