// How large kernels say that they are, for the rates of an emulated device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "device/wrapped_device.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/linear/matmul.hpp"
#include "kernels/optimizer/gradient.hpp"

namespace offstage::kernels {
namespace {

using testing::ElementsAre;

/// Runs nothing.
class CountingStream final : public device::WrappedStream {
 public:
  explicit CountingStream(device::Device& device) : WrappedStream{device.make_stream("count")} {}
  void enqueue(std::function<void()> /*kernel*/, device::Work work) override {
    flops.push_back(work.flops);
    updates += work.updates;
  }
  std::vector<double> flops;
  std::int64_t updates = 0;
};

class Work : public testing::Test {
 protected:
  std::unique_ptr<device::Device> made = device::make_host_device(0);
  CountingStream stream{*made};
};

TEST_F(Work, OfAProductIsAMultiplicationAndASumForEachOfItsTriples) {
  std::vector<float> const a(6);
  std::vector<float> const b(12);
  std::vector<float> c(8);
  Matmul<float> product{.a = a.data(), .b = b.data(), .c = c.data(), .m = 2, .n = 4, .k = 3};
  matmul(stream, product);
  product.transpose_a = product.transpose_b = Transpose::yes;
  matmul(stream, product);
  EXPECT_THAT(stream.flops, ElementsAre(48.0, 48.0));
  EXPECT_EQ(stream.updates, 0);
}

// One head of width 4 over three tokens: six pairs, and 2 x 4 operations for each in a product.
TEST_F(Work, OfAttentionIsThatOfTheCausalTriangle) {
  for (std::int64_t const heads : {1, 2}) {
    AttentionShape const shape{
        .batch = 1, .sequence = 3, .heads = heads, .kv_heads = 1, .head_dim = 4};
    std::vector<float> all(static_cast<std::size_t>(3 * (heads + 2) * 4));
    std::vector<float> out(static_cast<std::size_t>(3 * heads * 4));
    std::vector<float> rows(static_cast<std::size_t>(3 * heads));
    attention_forward<float>(stream, {.shape = shape, .qkv = all, .out = out, .log_sum_exp = rows});
    attention_backward<float>(
        stream,
        {.shape = shape, .qkv = all, .out = out, .d_out = out, .log_sum_exp = rows, .d_qkv = all});
  }
  EXPECT_THAT(stream.flops, ElementsAre(96.0, 240.0, 192.0, 480.0));
}

// With a window of two, five pairs are left of six.
TEST_F(Work, OfAttentionIsThatOfItsWindow) {
  AttentionShape shape{
      .batch = 1, .sequence = 3, .heads = 1, .kv_heads = 1, .head_dim = 4, .window = 2};
  std::vector<float> all(3 * 3 * 4), out(3 * 4), rows(3);
  attention_forward<float>(stream, {.shape = shape, .qkv = all, .out = out, .log_sum_exp = rows});
  shape.window = 3;
  attention_forward<float>(stream, {.shape = shape, .qkv = all, .out = out, .log_sum_exp = rows});
  EXPECT_THAT(stream.flops, ElementsAre(80.0, 96.0));
}

TEST_F(Work, OfWhatMakesNoProductIsNone) {
  std::vector<float> sum(8);
  accumulate<float, float>(stream, {.accumulator = sum, .gradient = sum, .first = false});
  EXPECT_THAT(stream.flops, ElementsAre(0.0));
  EXPECT_EQ(stream.updates, 0);
}

}  // namespace
}  // namespace offstage::kernels
