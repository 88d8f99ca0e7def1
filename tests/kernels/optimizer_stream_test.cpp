#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "device/device.hpp"
#include "kernels/gradient_support.hpp"
#include "kernels/optimizer/gradient.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "kernels/optimizer_arrays.hpp"
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
class AccumulateOnStream : public testing::Test {};
TYPED_TEST_SUITE(AccumulateOnStream, AllAccumulateTypes);
template <class Element>
class ChunkNormsOnStream : public testing::Test {};
TYPED_TEST_SUITE(ChunkNormsOnStream, AllElements);

TEST(OptimizeOnStream, GivesTheBitsOfRef) {
  for (OptimizerCase const& of : all_moments()) {
    on_both_streams([&](device::Stream& stream) {
      OptimizerArrays got{of, 5'120, 0, Values::extreme};
      OptimizerArrays expected = got;
      ref::optimize(of.layout(), expected.part(), ordinary_optimizer_step(of));
      // The arguments are gone at once.
      optimize(stream, of.layout(), got.part(), ordinary_optimizer_step(of));
      stream.synchronize();
      expect_same_bytes(got, expected);
    });
  }
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

TEST(OptimizerOnStream, AStepAloneCountsAsUpdates) {
  CountingStream stream{device::Kind::host};
  OptimizerCase const of{.optimizer = Optimizer::adamw};
  OptimizerArrays arrays{of, 300, 0, Values::ordinary};
  optimize(stream, of.layout(), arrays.part(), ordinary_optimizer_step(of));
  std::vector<float> values(300);
  std::vector<double> sums(1);
  chunk_norms<float>(stream, {values, sums});
  accumulate<float, float>(stream, {values, values, false});
  EXPECT_EQ(stream.counted, (std::vector<std::int64_t>{300, 0, 0}));
}

TEST(OptimizerOnStream, ChecksItsArgumentsAtOnce) {
  CountingStream stream{device::Kind::host};
  OptimizerCase const of{.optimizer = Optimizer::adamw};
  OptimizerArrays arrays{of, 8, 0, Values::ordinary};
  OptimizerPart part = arrays.part();
  part.elements = 7;
  OptimizerStep step = ordinary_optimizer_step(of);
  EXPECT_THROW(optimize(stream, of.layout(), part, step), PreconditionError);
  step.step = 0;
  EXPECT_THROW(optimize(stream, of.layout(), arrays.part(), step), PreconditionError);
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
  OptimizerCase const of{.optimizer = Optimizer::adamw};
  OptimizerArrays arrays{of, 8, 0, Values::ordinary};
  EXPECT_THROW(optimize(stream, of.layout(), arrays.part(), ordinary_optimizer_step(of)),
               UsageError);
  std::vector<float> values(8);
  EXPECT_THROW((accumulate<float, float>(stream, {values, values, false})), UsageError);
}
#endif

}  // namespace
}  // namespace offstage::kernels
