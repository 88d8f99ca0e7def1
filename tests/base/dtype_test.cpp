#include "base/dtype.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
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

// GCC's own type is the reference. Its conversions are a library's or the CPU's.
#if defined(__aarch64__)
using Half = __fp16;  // GCC 12 has no _Float16 there
#else
using Half = _Float16;
#endif

std::uint16_t reference_bits(float value) {
  return std::isnan(value) ? fp16_canonical_nan
                           : std::bit_cast<std::uint16_t>(static_cast<Half>(value));
}

TEST(Float16, EveryValueIsWidenedExactly) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    auto const half = static_cast<std::uint16_t>(bits);
    auto const expected = static_cast<float>(std::bit_cast<Half>(half));
    float const got = to_float(float16{half});
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(expected)) << bits;
    }
  }
}

TEST(Float16, EveryValueSurvivesTheWayThroughFloat) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    float16 const value{static_cast<std::uint16_t>(bits)};
    float const wide = to_float(value);
    ASSERT_EQ(to_fp16(wide).bits, std::isnan(wide) ? fp16_canonical_nan : value.bits) << bits;
  }
}

TEST(Float16, TiesBetweenAllNeighboursGoToTheEvenOne) {
  for (std::uint32_t bits = 0; bits < 0x7C00; ++bits) {
    for (std::uint32_t const sign : {0U, 0x8000U}) {
      auto const below = static_cast<std::uint16_t>(sign | bits);
      auto const above = static_cast<std::uint16_t>(below + 1);
      // Above the largest number stands 2^16, which is infinity here.
      float const next =
          bits == 0x7BFF ? (sign == 0 ? 65536.0F : -65536.0F) : to_float(float16{above});
      float const middle = (to_float(float16{below}) + next) / 2;  // exact
      ASSERT_EQ(to_fp16(middle).bits, bits % 2 == 0 ? below : above) << bits;
      ASSERT_EQ(to_fp16(std::nextafter(middle, 0.0F)).bits, below) << bits;
      ASSERT_EQ(to_fp16(std::nextafter(middle, 2 * next)).bits, above) << bits;
      for (float const x : {middle, std::nextafter(middle, 0.0F)}) {
        ASSERT_EQ(to_fp16(x).bits, reference_bits(x)) << bits;
      }
    }
  }
}

TEST(Float16, AgreesWithTheReferenceOnFloatsOfEveryMagnitude) {
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFF; bits += 4093) {  // a prime: all low bits come up
    float const value = from_bits(static_cast<std::uint32_t>(bits));
    ASSERT_EQ(to_fp16(value).bits, reference_bits(value)) << bits;
  }
}

TEST(Float16, SubnormalsAreKept) {
  EXPECT_EQ(to_fp16(0x1p-24F).bits, 0x0001);
  EXPECT_EQ(to_fp16(0x1.000002p-25F).bits, 0x0001);
  EXPECT_EQ(to_fp16(-0x1p-25F).bits, 0x8000);  // halfway to the smallest
  EXPECT_EQ(to_fp16(0x1.ffbp-15F).bits, 0x03FF);
  EXPECT_EQ(to_fp16(0x1.ffcp-15F).bits, 0x0400);  // rounds up to the smallest normal number
  EXPECT_EQ(to_float(float16{0x03FF}), 0x1.ff8p-15F);
  EXPECT_EQ(to_fp16(from_bits(0x80000001)).bits, 0x8000);
}

TEST(Float16, NumbersFrom65520OnAreInfinite) {
  EXPECT_EQ(to_fp16(fp16_largest).bits, 0x7BFF);
  EXPECT_EQ(to_fp16(std::nextafter(65520.0F, 0.0F)).bits, 0x7BFF);
  EXPECT_EQ(to_fp16(65520.0F).bits, 0x7C00);
  EXPECT_EQ(to_fp16(-65520.0F).bits, 0xFC00);
  EXPECT_EQ(to_fp16(std::numeric_limits<float>::max()).bits, 0x7C00);
  EXPECT_EQ(to_fp16(-std::numeric_limits<float>::infinity()).bits, 0xFC00);
  EXPECT_EQ(to_float(float16{0x7C00}), std::numeric_limits<float>::infinity());
}

TEST(Float16, EveryNanIsTheCanonicalOne) {
  for (std::uint32_t mantissa = 1; mantissa < 0x00800000; mantissa = mantissa * 2 + 1) {
    for (std::uint32_t const infinity : {0x7F800000U, 0xFF800000U}) {
      EXPECT_EQ(to_fp16(from_bits(infinity | mantissa)).bits, fp16_canonical_nan) << mantissa;
    }
  }
}

TEST(DType, NamesAndSizes) {
  EXPECT_STREQ(name_of(DType::fp16), "fp16");
  EXPECT_EQ(bytes_of(DType::fp16), 2);
  EXPECT_EQ(dtype_of<float16>(), DType::fp16);
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
  EXPECT_EQ(store<float16>(1.0), (float16{0x3C00}));
  EXPECT_EQ(load(store<float16>(1.00048828125F)), 1.0F);
  EXPECT_EQ(store<float>(0.1), 0.1F);
  EXPECT_EQ(store<double>(0.1), 0.1);
}

}  // namespace
}  // namespace offstage
