#include "checkpoint/convert_moments.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/chunk.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "kernels/optimizer/optimizer.hpp"

namespace offstage::checkpoint {
namespace {

using kernels::Moments;
using kernels::Optimizer;

StateLayout layout_of(Moments moments) {
  return kernels::state_layout(Optimizer::adamw, moments, false);
}

/// An extent of AdamW's.
class Sample {
 public:
  explicit Sample(StateLayout of_state, std::int64_t size = chunk_elements)
      : layout{std::move(of_state)},
        elements{size},
        bytes(static_cast<std::size_t>(layout.bytes(size))) {}

  template <class T>
  [[nodiscard]] T* plane(std::size_t index) {
    return reinterpret_cast<T*>(bytes.data() + layout.plane_offset(index, elements));
  }
  void convert_to(Sample& other, std::int64_t begin = 0) {
    convert_moments({layout, bytes, elements}, {other.layout, other.bytes, other.elements}, begin);
  }

  StateLayout layout;
  std::int64_t elements;
  std::vector<std::byte> bytes;
};

/// Numbers of many powers, both signs and zero in m; v is their square.
Sample of_many_powers(std::int64_t size = chunk_elements) {
  Sample sample{layout_of(Moments::fp32), size};
  for (std::int64_t i = 0; i < size; ++i) {
    float const m =
        std::ldexp(static_cast<float>(i % 37) - 18.0F, static_cast<int>(i % 23) - 20) / 7.0F;
    sample.plane<float>(0)[i] = 1.0F / static_cast<float>(i + 1);
    sample.plane<float>(1)[i] = m;
    sample.plane<float>(2)[i] = m * m;
  }
  return sample;
}

TEST(ConvertMoments, KeepsParametersAndWidensExactly) {
  for (Moments const moments : {Moments::bf16, Moments::int8}) {
    Sample source = of_many_powers();
    Sample small{layout_of(moments)};
    Sample wide{layout_of(Moments::fp32)};
    Sample small_again{layout_of(moments)};
    source.convert_to(small);
    small.convert_to(wide);
    wide.convert_to(small_again);
    EXPECT_EQ(small.bytes, small_again.bytes) << name_of(moments);
    EXPECT_EQ(std::memcmp(wide.plane<float>(0), source.plane<float>(0), 4 * chunk_elements), 0);
  }
}

// bf16 has 8 bits of significand: half a place is 2^-8 of the number at most.
TEST(ConvertMoments, RoundsToTheNearestBf16) {
  Sample source = of_many_powers();
  Sample small{layout_of(Moments::bf16)};
  source.convert_to(small);
  for (std::int64_t i = 0; i < chunk_elements; ++i) {
    for (std::size_t const plane : {1U, 2U}) {
      float const exact = source.plane<float>(plane)[i];
      float const kept = to_float(small.plane<bfloat16>(plane)[i]);
      ASSERT_LE(std::abs(kept - exact), std::abs(exact) * 0x1p-8F) << plane << ", " << i;
    }
  }
}

// Codes have 4 bits of significand, half a place is 2^-4, of numbers that are not too small beside
// the largest of their block: 2^-14 of it for m, 2^-30 for v.
TEST(ConvertMoments, RoundsToTheNearestCodeOfABlock) {
  Sample source = of_many_powers();
  Sample small{layout_of(Moments::int8)};
  Sample wide{layout_of(Moments::fp32)};
  source.convert_to(small);
  small.convert_to(wide);
  for (auto const& [plane, least] : {std::pair{1U, 0x1p-14F}, std::pair{2U, 0x1p-30F}}) {
    for (std::int64_t begin = 0; begin < chunk_elements; begin += scale_block) {
      float const* const exact = source.plane<float>(plane) + begin;
      float const* const kept = wide.plane<float>(plane) + begin;
      float largest = 0.0F;
      for (std::int64_t i = 0; i < scale_block; ++i) {
        largest = std::max(largest, std::abs(exact[i]));
      }
      for (std::int64_t i = 0; i < scale_block; ++i) {
        float const place = std::max(std::abs(exact[i]), largest * least);
        ASSERT_LE(std::abs(kept[i] - exact[i]), place * 0x1p-4F) << plane << ", " << begin + i;
      }
    }
  }
}

TEST(ConvertMoments, KeepsAVarianceThatIsNotZero) {
  Sample source = of_many_powers();
  Sample small{layout_of(Moments::int8)};
  Sample wide{layout_of(Moments::fp32)};
  source.convert_to(small);
  small.convert_to(wide);
  for (std::int64_t i = 0; i < chunk_elements; ++i) {
    ASSERT_EQ(wide.plane<float>(2)[i] == 0.0F, source.plane<float>(2)[i] == 0.0F) << i;
  }
}

TEST(ConvertMoments, FillsAPartOfALargerExtent) {
  Sample source = of_many_powers();
  Sample small{layout_of(Moments::int8)};
  source.convert_to(small);
  Sample large{layout_of(Moments::int8), 3 * chunk_elements};
  source.convert_to(large, chunk_elements);
  for (std::size_t plane = 0; plane < large.layout.size(); ++plane) {
    auto const bytes = static_cast<std::size_t>(large.layout.plane_bytes(plane, chunk_elements));
    std::byte const* const begin = large.plane<std::byte>(plane);
    EXPECT_EQ(std::memcmp(begin + bytes, small.plane<std::byte>(plane), bytes), 0) << plane;
    EXPECT_EQ(begin[bytes - 1], std::byte{});
    EXPECT_EQ(begin[2 * bytes], std::byte{});
  }
}

TEST(ConvertMoments, KeepsWhatIsNoNumber) {
  Sample source = of_many_powers();
  source.plane<float>(1)[5] = std::numeric_limits<float>::quiet_NaN();
  source.plane<float>(2)[300] = std::numeric_limits<float>::infinity();
  Sample half{layout_of(Moments::bf16)};
  source.convert_to(half);
  EXPECT_EQ(half.plane<bfloat16>(1)[5].bits, bf16_canonical_nan);
  EXPECT_TRUE(std::isinf(to_float(half.plane<bfloat16>(2)[300])));
  Sample small{layout_of(Moments::int8)};
  source.convert_to(small);
  EXPECT_TRUE(std::isnan(small.plane<float>(3)[0]));
  EXPECT_FALSE(std::isnan(small.plane<float>(3)[1]));
  EXPECT_TRUE(std::isnan(small.plane<float>(4)[1]));
}

// In 8 bits m is scale * (power * (1 + eighths) - 2^-15), which takes more than bf16's 8 bits of
// significand.
TEST(ConvertMoments, IsExactToFp32Alone) {
  StateLayout const fp32 = layout_of(Moments::fp32);
  StateLayout const half = layout_of(Moments::bf16);
  StateLayout const small = layout_of(Moments::int8);
  EXPECT_TRUE(converts_exactly(small, fp32));
  EXPECT_TRUE(converts_exactly(half, fp32));
  EXPECT_TRUE(converts_exactly(half, half));
  EXPECT_FALSE(converts_exactly(small, half));
  EXPECT_FALSE(converts_exactly(fp32, half));
  EXPECT_FALSE(converts_exactly(half, small));

  Sample source{small};
  source.plane<std::uint8_t>(1)[0] = 100;
  source.plane<float>(3)[0] = 1.0F;
  Sample as_half{half};
  Sample as_fp32{fp32};
  source.convert_to(as_half);
  source.convert_to(as_fp32);
  EXPECT_NE(to_float(as_half.plane<bfloat16>(1)[0]), as_fp32.plane<float>(1)[0]);
}

TEST(ConvertMoments, NeedsTheSameMoments) {
  Sample source = of_many_powers();
  Sample adagrad{kernels::state_layout(Optimizer::adagrad, Moments::fp32, false)};
  EXPECT_NO_THROW(source.convert_to(adagrad));  // the variance is there
  EXPECT_THROW(adagrad.convert_to(source), PreconditionError);
}

}  // namespace
}  // namespace offstage::checkpoint
