#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "device/device.hpp"
#include "kernels/gpu_support.hpp"
#include "kernels/gradient_support.hpp"
#include "kernels/optimizer/gradient.hpp"
#include "kernels/optimizer_support.hpp"
#include "platform/cuda/gpus.hpp"

namespace offstage::kernels {
namespace {

/// A stream of the GPU; its tests are skipped where there is none.
class GradientOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (offstage::cuda::find_gpus().count == 0) {
      GTEST_SKIP() << "no GPU: not run";
    }
    device = device::make_cuda_device(0, 0);
    stream = device->make_stream("gradient");
  }

  std::unique_ptr<device::Device> device;
  std::unique_ptr<device::Stream> stream;
};

template <class Types>
class AccumulateOnGpu : public GradientOnGpu {};
TYPED_TEST_SUITE(AccumulateOnGpu, AllAccumulateTypes);

template <class Element>
class ChunkNormsOnGpu : public GradientOnGpu {};
TYPED_TEST_SUITE(ChunkNormsOnGpu, AllElements);

using ConvertOnGpu = GradientOnGpu;

TYPED_TEST(AccumulateOnGpu, GivesTheBitsOfRef) {
  using A = typename TypeParam::A;
  using G = typename TypeParam::G;
  constexpr std::size_t least = 8;  // elements beside the views, which must stay as they are
  for (Values const kind : all_kinds) {
    for (std::size_t const count : odd_lengths) {
      for (bool const first : {false, true}) {
        // Both aligned to 16 bytes, one of them, none.
        for (auto const& [to, from] : {std::pair{8, 8}, std::pair{8, 3}, std::pair{1, 3}}) {
          SCOPED_TRACE(testing::Message() << count << " elements from " << to << " and " << from
                                          << " on, first " << first);
          auto const a = static_cast<std::size_t>(to);
          auto const g = static_cast<std::size_t>(from);
          auto expected = make_values<A>(count + 2 * least, kind, 1);
          auto const gradient = make_values<G>(count + 2 * least, kind, 2);
          auto got = expected;
          ref::accumulate<A, G>({.accumulator = std::span{expected}.subspan(a, count),
                                 .gradient = std::span{gradient}.subspan(g, count),
                                 .first = first});
          DeviceArray<A> const there{got};
          DeviceArray<G> const addend{gradient};
          accumulate<A, G>(*this->stream, {.accumulator = there.view(a, count),
                                           .gradient = addend.view(g, count),
                                           .first = first});
          this->stream->synchronize();
          there.copy_to(got);
          expect_same_bits(got, expected, "accumulator");
        }
      }
    }
  }
}

TYPED_TEST(ChunkNormsOnGpu, GivesTheBitsOfRef) {
  for (Values const kind : all_kinds) {
    for (std::size_t const count : odd_lengths) {
      SCOPED_TRACE(testing::Message() << count << " elements");
      auto const values = make_values<TypeParam>(count + 1, kind, 5);
      std::size_t const chunks = (count + 4095) / 4096;
      std::vector<double> expected(chunks + 1, -1.0);
      auto got = expected;
      ref::chunk_norms<TypeParam>(
          {.x = std::span{values}.subspan(1), .sums = std::span{expected}.first(chunks)});
      DeviceArray<TypeParam> const x{values};
      DeviceArray<double> const sums{got};
      chunk_norms<TypeParam>(*this->stream, {.x = x.view(1, count), .sums = sums.view(0, chunks)});
      this->stream->synchronize();
      sums.copy_to(got);
      expect_same_bits(got, expected, "sums");
    }
  }
}

TYPED_TEST(ChunkNormsOnGpu, GivesTheBitsOfTheHostForManyChunks) {
  auto const x = make_values<TypeParam>((std::size_t{1} << 20) + 5, Values::finite, 5);
  std::vector<double> expected(257);
  auto got = expected;
  host::chunk_norms<TypeParam>({x, expected});
  DeviceArray<TypeParam> const there{x};
  DeviceArray<double> const sums{got};
  chunk_norms<TypeParam>(*this->stream, {there.view(0, x.size()), sums.view(0, got.size())});
  this->stream->synchronize();
  sums.copy_to(got);
  expect_same_bits(got, expected, "sums");
}

/// More packs of 16 bytes than the largest grid has threads.
TYPED_TEST(AccumulateOnGpu, GivesTheBitsOfTheHostForManyElements) {
  using A = typename TypeParam::A;
  using G = typename TypeParam::G;
  constexpr std::size_t pack = 16 / std::max(sizeof(A), sizeof(G));
  std::size_t const count = std::size_t{8'192} * 256 * pack + 77;  // two packs for some threads
  std::vector<A> expected(count, store<A>(1.5F));
  auto got = expected;
  auto gradient = make_values<G>(1 << 16, Values::ordinary, 2);
  for (std::size_t const some = gradient.size(); gradient.size() < count;) {
    gradient.push_back(gradient[gradient.size() - some]);
  }
  host::accumulate<A, G>({expected, gradient, false});
  DeviceArray<A> const there{got};
  DeviceArray<G> const addend{gradient};
  accumulate<A, G>(*this->stream, {there.view(0, count), addend.view(0, count), false});
  this->stream->synchronize();
  there.copy_to(got);
  expect_same_bits(got, expected, "accumulator");
}

template <class To>
void expect_conversion_like_ref(device::Stream& stream, std::vector<float> const& in) {
  std::vector<To> expected(in.size());
  ref::convert(in, expected);
  DeviceArray<float> const from{in};
  std::vector<To> got(in.size());
  DeviceArray<To> const to{got};
  convert(stream, from.view(0, in.size()), to.view(0, in.size()));
  stream.synchronize();
  to.copy_to(got);
  expect_same_bits(got, expected, "converted");
}

/// Every upper half of a float, with lower halves around the ties of both 16-bit types.
TEST_F(ConvertOnGpu, RoundsAsRefDoes) {
  std::vector<float> in;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (std::uint32_t const low : {0x0000U, 0x0001U, 0x0FFFU, 0x1000U, 0x1001U, 0x3000U, 0x7FFFU,
                                    0x8000U, 0x8001U, 0xFFFFU}) {
      in.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  expect_conversion_like_ref<bfloat16>(*stream, in);
  expect_conversion_like_ref<float16>(*stream, in);
}

TEST_F(ConvertOnGpu, WidensEveryFloat16AsRefDoes) {
  std::vector<float16> in(0x10000);
  for (std::size_t i = 0; i < in.size(); ++i) {
    in[i].bits = static_cast<std::uint16_t>(i);
  }
  std::vector<float> expected(in.size()), got(in.size());
  ref::accumulate<float, float16>({expected, in, true});
  DeviceArray<float16> const from{in};
  DeviceArray<float> const to{got};
  accumulate<float, float16>(
      *stream,
      {.accumulator = to.view(0, in.size()), .gradient = from.view(0, in.size()), .first = true});
  stream->synchronize();
  to.copy_to(got);
  expect_same_bits(got, expected, "widened");
}

TEST(GradientKernelsOfCuda, CheckTheirArgumentsWithoutAGpu) {
  std::vector<float> a(2);
  std::vector<bfloat16> const g(3);
  std::vector<double> sums(2);
  EXPECT_THROW((cuda::accumulate<float, bfloat16>({a, g, false}, nullptr)), PreconditionError);
  EXPECT_THROW((cuda::chunk_norms<bfloat16>({g, sums}, nullptr)), PreconditionError);
}

}  // namespace
}  // namespace offstage::kernels
