#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "device/device.hpp"
#include "kernels/adamw_support.hpp"
#include "kernels/gradient_support.hpp"
#include "kernels/optimizer/adamw.hpp"
#include "kernels/optimizer/gradient.hpp"
#include "kernels/optimizer_support.hpp"

namespace offstage::kernels {
namespace {

/// Counts updates; on a backend that has no native stream.
class CountingStream final : public device::Stream {
 public:
  explicit CountingStream(device::Kind kind) : kind_{kind} {}
  [[nodiscard]] device::Kind kind() const noexcept override { return kind_; }
  void copy(void*, void const*, Bytes, device::Copy) override {}
  void zero(void*, Bytes) override {}
  void enqueue(std::function<void()>, device::Work work) override {
    counted.push_back(work.updates);
  }
  [[nodiscard]] void* native() const noexcept override { return nullptr; }
  [[nodiscard]] std::span<std::byte> scratch() const noexcept override { return {}; }
  [[nodiscard]] offstage::cuda::BlasLt& blas() override {
    throw PreconditionError{"no products here"};
  }
  [[nodiscard]] std::shared_ptr<device::Event> record() override { return {}; }
  void wait(device::Event const&) override {}
  void synchronize() override {}

  std::vector<std::int64_t> counted;

 private:
  device::Kind kind_;
};

/// check(stream) on a stream with a thread of its own and on one without.
template <class Check>
void on_both_streams(Check const& check) {
  auto const device = device::make_host_device(0);
  for (auto const& stream :
       {device->make_stream("update"), device->make_calling_stream("compute")}) {
    check(*stream);
  }
}

template <class Types>
class AdamwOnStream : public testing::Test {};
TYPED_TEST_SUITE(AdamwOnStream, AllAdamwTypes);
template <class Types>
class AccumulateOnStream : public testing::Test {};
TYPED_TEST_SUITE(AccumulateOnStream, AllAccumulateTypes);
template <class Element>
class ChunkNormsOnStream : public testing::Test {};
TYPED_TEST_SUITE(ChunkNormsOnStream, AllElements);

TYPED_TEST(AdamwOnStream, GivesTheBitsOfRef) {
  on_both_streams([](device::Stream& stream) {
    AdamwArrays<typename TypeParam::G, typename TypeParam::W> got{5'000, 3, Values::extreme};
    auto expected = got;
    ref::adamw(expected.state(), ordinary_step);
    adamw(stream, got.state(), ordinary_step);  // the arguments are gone at once
    stream.synchronize();
    expect_same_bits(got, expected);
  });
}

TYPED_TEST(AccumulateOnStream, GivesTheBitsOfRef) {
  using A = typename TypeParam::A;
  using G = typename TypeParam::G;
  on_both_streams([](device::Stream& stream) {
    auto const gradient = make_values<G>(5'000, Values::extreme, 2);
    auto got = make_values<A>(5'000, Values::extreme, 1);
    auto expected = got;
    for (bool const first : {false, true, false}) {
      ref::accumulate<A, G>({expected, gradient, first});
      accumulate<A, G>(stream, {got, gradient, first});
    }
    stream.synchronize();
    expect_same_bits(got, expected, "accumulator");
  });
}

TYPED_TEST(ChunkNormsOnStream, GivesTheBitsOfRef) {
  on_both_streams([](device::Stream& stream) {
    auto const x = make_values<TypeParam>(9'000, Values::finite, 5);
    std::vector<double> got(3), expected(3);
    ref::chunk_norms<TypeParam>({x, expected});
    chunk_norms<TypeParam>(stream, {x, got});
    stream.synchronize();
    expect_same_bits(got, expected, "sums");
  });
}

template <class To>
void expect_conversion_like_ref() {
  on_both_streams([](device::Stream& stream) {
    auto const in = make_values<float>(5'000, Values::extreme, 1);
    std::vector<To> got(in.size()), expected(in.size());
    ref::convert(in, expected);
    convert(stream, in, got);
    stream.synchronize();
    expect_same_bits(got, expected, "converted");
  });
}

TEST(ConvertOnStream, GivesTheBitsOfRef) {
  expect_conversion_like_ref<bfloat16>();
  expect_conversion_like_ref<float16>();
}

TEST(OptimizerOnStream, AdamwAloneCountsAsUpdates) {
  CountingStream stream{device::Kind::host};
  AdamwArrays<float, bfloat16> arrays{300, 0, Values::ordinary};
  adamw(stream, arrays.state(), ordinary_step);
  std::vector<double> sums(1);
  chunk_norms<float>(stream, {arrays.parameter, sums});
  accumulate<float, float>(stream, {arrays.parameter, arrays.gradient, false});
  EXPECT_EQ(stream.counted, (std::vector<std::int64_t>{300, 0, 0}));
}

TEST(OptimizerOnStream, ChecksItsArgumentsAtOnce) {
  CountingStream stream{device::Kind::host};
  AdamwArrays<float, bfloat16> arrays{8, 0, Values::ordinary};
  auto state = arrays.state();
  state.momentum = state.momentum.first(7);
  EXPECT_THROW(adamw(stream, state, ordinary_step), PreconditionError);
  AdamwStep step = ordinary_step;
  step.step = 0;
  EXPECT_THROW(adamw(stream, arrays.state(), step), PreconditionError);
  std::vector<float> const in(3);
  std::vector<bfloat16> out(2);
  std::vector<double> sums(2);
  EXPECT_THROW(convert(stream, in, out), PreconditionError);
  EXPECT_THROW((accumulate<bfloat16, float>(stream, {out, in, false})), PreconditionError);
  EXPECT_THROW(chunk_norms<float>(stream, {in, sums}), PreconditionError);
  EXPECT_TRUE(stream.counted.empty());
}

#ifndef OFFSTAGE_HAVE_CUDA
TEST(OptimizerOnStream, SaysThatCudaWasNotCompiledIn) {
  CountingStream stream{device::Kind::cuda};
  AdamwArrays<float, float> arrays{8, 0, Values::ordinary};
  EXPECT_THROW(adamw(stream, arrays.state(), ordinary_step), UsageError);
  EXPECT_THROW((accumulate<float, float>(stream, {arrays.parameter, arrays.gradient, false})),
               UsageError);
}
#endif

}  // namespace
}  // namespace offstage::kernels
