#include "kernels/optimizer/gradient.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.hpp"
#include "kernels/gradient_support.hpp"
#include "kernels/optimizer_support.hpp"

namespace offstage::kernels {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

template <class Types>
class AccumulateOf : public testing::Test {};
TYPED_TEST_SUITE(AccumulateOf, AllAccumulateTypes);

template <class Element>
class ChunkNormsOf : public testing::Test {};
TYPED_TEST_SUITE(ChunkNormsOf, AllElements);

template <class A, class G>
std::vector<A> accumulated(std::vector<A> accumulator, std::vector<G> const& gradient, bool first) {
  ref::accumulate<A, G>({accumulator, gradient, first});
  return accumulator;
}

TYPED_TEST(AccumulateOf, AddsOrReplaces) {
  using A = typename TypeParam::A;
  using G = typename TypeParam::G;
  std::vector<A> const start{store<A>(1.0F), store<A>(nan)};
  std::vector<G> const gradient{store<G>(0.5F), store<G>(2.0F)};

  EXPECT_EQ(load(accumulated(start, gradient, false)[0]), 1.5F);
  EXPECT_TRUE(std::isnan(load(accumulated(start, gradient, false)[1])));
  EXPECT_EQ(load(accumulated(start, gradient, true)[0]), 0.5F);
  EXPECT_EQ(load(accumulated(start, gradient, true)[1]), 2.0F);
}

TEST(Accumulate, RoundsTheSumOnceToNearestEven) {
  // 2^-8 is half the distance between the bfloat16 numbers that follow 1.
  std::vector<bfloat16> const start{to_bf16(1.0F), to_bf16(1.0078125F)};
  std::vector<bfloat16> const gradient(2, to_bf16(0x1p-8F));

  auto const sum = accumulated(start, gradient, false);

  EXPECT_EQ(to_float(sum[0]), 1.0F);
  EXPECT_EQ(to_float(sum[1]), 1.015625F);
}

TEST(Accumulate, ASumBeyondTheRangeOfFloat16IsInfinite) {
  std::vector<float16> const start{to_fp16(65504.0F), to_fp16(65504.0F), to_fp16(-infinity)};
  std::vector<float16> const gradient{to_fp16(15.0F), to_fp16(16.0F), to_fp16(65504.0F)};

  auto const sum = accumulated(start, gradient, false);

  EXPECT_EQ(to_float(sum[0]), 65504.0F);
  EXPECT_EQ(to_float(sum[1]), infinity);
  EXPECT_EQ(to_float(sum[2]), -infinity);
}

TEST(Accumulate, StoresNanInCanonicalForm) {
  std::vector<float> const start{infinity, std::bit_cast<float>(0xFFFFFFFFU)};
  std::vector<float> const gradient{-infinity, 1.0F};

  for (float const sum : accumulated(start, gradient, false)) {
    EXPECT_EQ(bits_of(sum), 0x7FC00000U);
  }
  EXPECT_EQ(bits_of(accumulated(gradient, start, true)[1]), 0x7FC00000U);
}

TEST(Accumulate, RejectsViewsOfDifferentLength) {
  std::vector<float> a(2);
  std::vector<bfloat16> const g(3);
  EXPECT_THROW((ref::accumulate<float, bfloat16>({a, g, false})), PreconditionError);
  EXPECT_THROW((host::accumulate<float, bfloat16>({a, g, true})), PreconditionError);
}

TEST(Accumulate, RejectsAnInstructionSetThatTheCpuLacks) {
  EXPECT_THROW((host::accumulate<float, float>({}, beyond_best_simd())), PreconditionError);
}

TYPED_TEST(AccumulateOf, EveryInstructionSetGivesTheBitsOfRef) {
  using A = typename TypeParam::A;
  using G = typename TypeParam::G;
  for (std::size_t const count : odd_lengths) {
    for (bool const first : {false, true}) {
      auto const start = make_values<A>(count + 4, Values::extreme, 1);
      auto const gradient = make_values<G>(count + 4, Values::extreme, 2);
      // Unaligned, and with guards on both sides.
      auto const views = [&](std::vector<A>& accumulator) {
        return Accumulate<A, G>{.accumulator = std::span{accumulator}.subspan(1, count),
                                .gradient = std::span{gradient}.subspan(3, count),
                                .first = first};
      };
      auto expected = start;
      ref::accumulate(views(expected));
      for (Simd const simd : available_simd()) {
        SCOPED_TRACE(testing::Message() << name_of(simd) << ", " << count << " elements");
        auto got = start;
        host::accumulate(views(got), simd);
        expect_same_bits(got, expected, "accumulator");
      }
    }
  }
}

TYPED_TEST(AccumulateOf, ThreadsDoNotChangeBits) {
  using A = typename TypeParam::A;
  using G = typename TypeParam::G;
  auto const start = make_values<A>(200'003, Values::extreme, 1);
  auto const gradient = make_values<G>(start.size(), Values::extreme, 2);
  auto const expected = accumulated(start, gradient, false);
  for (int const threads : {1, 2, 3}) {
    auto got = start;
    with_threads(threads, [&] { host::accumulate<A, G>({got, gradient, false}); });
    expect_same_bits(got, expected, "accumulator");
  }
}

TEST(Convert, RoundsToNearestEvenAndKeepsSpecialNumbers) {
  std::vector<float> const in{1.00390625F, 1.01171875F, -0.0F, infinity, nan, 3.4e38F, 0x1p-133F};
  std::vector<float> const out{1.0F, 1.015625F, -0.0F, infinity, nan, infinity, 0x1p-133F};
  std::vector<bfloat16> expected;
  for (float const x : out) {
    expected.push_back({static_cast<std::uint16_t>(bits_of(x) >> 16)});
  }

  std::vector<bfloat16> got(in.size());
  ref::convert(in, got);
  expect_same_bits(got, expected, "ref");
  for (Simd const simd : available_simd()) {
    got.assign(in.size(), bfloat16{});
    host::convert(in, got, simd);
    expect_same_bits(got, expected, name_of(simd));
  }
}

template <class To>
void expect_every_conversion_like_ref() {
  for (std::size_t const count : odd_lengths) {
    auto const in = make_values<float>(count, Values::extreme, 1);
    std::vector<To> expected(count);
    ref::convert(in, expected);
    for (Simd const simd : available_simd()) {
      std::vector<To> got(count);
      host::convert(in, got, simd);
      expect_same_bits(got, expected, name_of(simd));
    }
  }
}

TEST(Convert, EveryInstructionSetGivesTheBitsOfRef) {
  expect_every_conversion_like_ref<bfloat16>();
  expect_every_conversion_like_ref<float16>();
}

/// Every float whose low bits are those of a tie, or one off it, in blocks of consecutive numbers.
TEST(Convert, EveryInstructionSetRoundsTiesToFloat16AsRefDoes) {
  std::vector<float> in;
  for (std::uint32_t high = 0; high < 0x80000; ++high) {
    for (std::uint32_t const low : {0x0FFFU, 0x1000U, 0x1001U}) {
      in.push_back(std::bit_cast<float>((high << 13) | low));
    }
  }
  std::vector<float16> expected(in.size()), got(in.size());
  ref::convert(in, expected);
  for (Simd const simd : available_simd()) {
    host::convert(in, got, simd);
    expect_same_bits(got, expected, name_of(simd));
  }
}

TEST(Convert, EveryInstructionSetWidensEveryFloat16AsRefDoes) {
  std::vector<float16> in(0x10000);
  for (std::size_t i = 0; i < in.size(); ++i) {
    in[i].bits = static_cast<std::uint16_t>(i);
  }
  std::vector<float> expected(in.size()), got(in.size());
  ref::accumulate<float, float16>({expected, in, true});
  for (Simd const simd : available_simd()) {
    host::accumulate<float, float16>({got, in, true}, simd);
    expect_same_bits(got, expected, name_of(simd));
  }
}

TEST(Convert, RejectsViewsOfDifferentLength) {
  std::vector<float> const in(2);
  std::vector<bfloat16> out(3);
  std::vector<float16> out16(3);
  EXPECT_THROW(ref::convert(in, out), PreconditionError);
  EXPECT_THROW(host::convert(in, out), PreconditionError);
  EXPECT_THROW(ref::convert(in, out16), PreconditionError);
  EXPECT_THROW(host::convert(in, out16), PreconditionError);
}

TYPED_TEST(ChunkNormsOf, SumsEachChunkByItself) {
  // 4096 times 2^2, then 3 times 0.5^2.
  std::vector<TypeParam> x(4096, store<TypeParam>(2.0F));
  x.resize(4099, store<TypeParam>(-0.5F));
  std::vector<double> const expected{16384.0, 0.75};

  std::vector<double> sums(2);
  ref::chunk_norms<TypeParam>({x, sums});
  EXPECT_EQ(sums, expected);
  for (Simd const simd : available_simd()) {
    sums.assign(2, -1.0);
    host::chunk_norms<TypeParam>({x, sums}, simd);
    EXPECT_EQ(sums, expected) << name_of(simd);
  }
}

// One in lane 0 and 2^-54 in lanes 1 to 15: added one lane after the other, each is lost against
// the one; added first, they would not be.
TEST(ChunkNorms, AddsLanesInOrder) {
  std::vector<float> x(16, 0x1p-27F);
  x[0] = 1.0F;
  std::vector<double> sums(1);
  ref::chunk_norms<float>({x, sums});
  EXPECT_EQ(sums[0], 1.0);
  x[0] = 0x1p-27F;
  x[15] = 1.0F;
  ref::chunk_norms<float>({x, sums});
  EXPECT_EQ(sums[0], 1.0 + 0x1p-50);
}

TEST(ChunkNorms, RejectsAnythingButOneSumPerStartedChunk) {
  std::vector<float> const x(4097);
  std::vector<double> one(1), three(3);
  EXPECT_THROW((ref::chunk_norms<float>({x, one})), PreconditionError);
  EXPECT_THROW((host::chunk_norms<float>({x, one})), PreconditionError);
  EXPECT_THROW((host::chunk_norms<float>({x, three})), PreconditionError);
  EXPECT_THROW((host::chunk_norms<float>({{}, one})), PreconditionError);
}

TYPED_TEST(ChunkNormsOf, EveryInstructionSetAndThreadCountGivesTheBitsOfRef) {
  for (Values const kind : all_kinds) {
    for (std::size_t const count : odd_lengths) {
      auto const values = make_values<TypeParam>(count + 1, kind, 5);
      auto const x = std::span{values}.subspan(1);
      std::vector<double> expected((count + 4095) / 4096);
      ref::chunk_norms<TypeParam>({x, expected});
      for (Simd const simd : available_simd()) {
        SCOPED_TRACE(testing::Message() << name_of(simd) << ", " << count << " elements");
        for (int const threads : {1, 3}) {
          std::vector<double> got(expected.size(), -1.0);
          with_threads(threads, [&] { host::chunk_norms<TypeParam>({x, got}, simd); });
          expect_same_bits(got, expected, "sums");
        }
      }
    }
  }
}

}  // namespace
}  // namespace offstage::kernels
