#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.hpp"
#include "device/device.hpp"
#include "kernels/adamw_support.hpp"
#include "kernels/gpu_support.hpp"
#include "platform/cuda/check.hpp"
#include "platform/cuda/gpus.hpp"

namespace offstage::kernels {
namespace {

template <class G, class W>
void step_on_gpu(AdamwArrays<G, W>& arrays,
                 std::function<void(AdamwState<G, W> const&)> const& adamw) {
  DeviceArray<float> const parameter{arrays.parameter};
  DeviceArray<float> const momentum{arrays.momentum};
  DeviceArray<float> const variance{arrays.variance};
  DeviceArray<G> const gradient{arrays.gradient};
  DeviceArray<W> const working_copy{arrays.working_copy};
  adamw({.parameter = parameter.view(arrays.offset, arrays.count),
         .momentum = momentum.view(arrays.offset, arrays.count),
         .variance = variance.view(arrays.offset, arrays.count),
         .gradient = gradient.view(arrays.offset, arrays.count),
         .working_copy = working_copy.view(arrays.offset, arrays.count)});
  offstage::cuda::check(cudaDeviceSynchronize());
  parameter.copy_to(arrays.parameter);
  momentum.copy_to(arrays.momentum);
  variance.copy_to(arrays.variance);
  working_copy.copy_to(arrays.working_copy);
}

template <class Types>
class AdamwOnGpu : public testing::Test {};
TYPED_TEST_SUITE(AdamwOnGpu, AllAdamwTypes);

TYPED_TEST(AdamwOnGpu, GivesTheBitsOfRef) {
  if (offstage::cuda::device_count() == 0) {
    GTEST_SKIP() << "no GPU: not run";
  }
  using G = typename TypeParam::G;
  using W = typename TypeParam::W;
  for (Values const kind : all_kinds) {
    for (std::size_t const count : odd_lengths) {
      // Views that begin at a multiple of 16 bytes, of 8, and of neither.
      for (std::size_t const offset : {std::size_t{0}, std::size_t{4}, 1 + count % 3}) {
        SCOPED_TRACE(testing::Message() << count << " elements from " << offset << " on");
        AdamwArrays<G, W> got{count, offset, kind};
        auto expected = got;
        ref::adamw(expected.state(), ordinary_step);
        step_on_gpu<G, W>(got, [](auto const& s) { cuda::adamw(s, ordinary_step, nullptr); });
        expect_same_bits(got, expected);
      }
    }
  }
}

TYPED_TEST(AdamwOnGpu, GivesTheBitsOfRefOnAStream) {
  if (offstage::cuda::device_count() == 0) {
    GTEST_SKIP() << "no GPU: not run";
  }
  using G = typename TypeParam::G;
  using W = typename TypeParam::W;
  auto const device = device::make_cuda_device(0, 0);
  auto const stream = device->make_stream("update");
  AdamwArrays<G, W> got{70'001, 3, Values::extreme};
  auto expected = got;
  ref::adamw(expected.state(), ordinary_step);
  step_on_gpu<G, W>(got, [&](auto const& s) {
    adamw(*stream, s, ordinary_step);
    stream->synchronize();
  });
  expect_same_bits(got, expected);
}

TYPED_TEST(AdamwOnGpu, ChecksItsArgumentsWithoutAGpu) {
  using G = typename TypeParam::G;
  using W = typename TypeParam::W;
  AdamwArrays<G, W> arrays{8, 0, Values::ordinary};
  auto state = arrays.state();
  state.momentum = state.momentum.first(7);
  EXPECT_THROW(cuda::adamw(state, ordinary_step, nullptr), PreconditionError);
  AdamwStep step = ordinary_step;
  step.step = 0;
  EXPECT_THROW(cuda::adamw(arrays.state(), step, nullptr), PreconditionError);
}

}  // namespace
}  // namespace offstage::kernels
