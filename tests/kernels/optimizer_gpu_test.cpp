#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <list>

#include "base/error.hpp"
#include "device/device.hpp"
#include "kernels/gpu_support.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "kernels/optimizer_arrays.hpp"
#include "platform/cuda/check.hpp"
#include "platform/cuda/gpus.hpp"

namespace offstage::kernels {
namespace {

using HostBytes = std::vector<std::byte>;

/// step(part) with a part whose arrays are on the device.
template <class Step>
void step_on_gpu(OptimizerArrays& arrays, Step const& step) {
  OptimizerPart part = arrays.part();
  std::list<DeviceArray<std::byte>> planes;
  for (std::size_t i = 0; i < arrays.planes.size(); ++i) {
    DeviceArray<std::byte> const& plane = planes.emplace_back(arrays.planes[i]);
    part.planes[i] =
        plane.view(0, arrays.planes[i].size()).data() + (arrays.at(i) - arrays.planes[i].data());
  }
  DeviceArray<std::byte> const gradient{arrays.gradient};
  DeviceArray<std::byte> const copy{arrays.copy};
  auto const on_device = [&](auto& span, HostBytes const& host,
                             DeviceArray<std::byte> const& device) {
    using Element = typename std::remove_reference_t<decltype(span)>::element_type;
    auto const offset = reinterpret_cast<std::byte const*>(span.data()) - host.data();
    span = {reinterpret_cast<Element*>(device.view(0, host.size()).data() + offset), span.size()};
  };
  std::visit([&](auto& span) { on_device(span, arrays.gradient, gradient); }, part.gradient);
  std::visit([&](auto& span) { on_device(span, arrays.copy, copy); }, part.working_copy);
  step(part);
  offstage::cuda::check(cudaDeviceSynchronize());
  auto plane = planes.begin();
  for (std::vector<std::byte>& values : arrays.planes) {
    (plane++)->copy_to(values);
  }
  copy.copy_to(arrays.copy);
}

void expect_bits_of_ref(OptimizerCase const& of, std::size_t count, std::size_t guard,
                        Values kind) {
  SCOPED_TRACE(testing::Message() << of.name() << ", " << count << " elements behind " << guard);
  OptimizerStep const step = ordinary_optimizer_step(of);
  OptimizerArrays got{of, count, guard, kind};
  got.decayed = count / 3;
  OptimizerArrays expected = got;
  ref::optimize(of.layout(), expected.part(), step);
  step_on_gpu(got, [&](auto const& part) { cuda::optimize(of.layout(), part, step, nullptr); });
  expect_same_bytes(got, expected);
}

TEST(OptimizeOnGpu, GivesTheBitsOfRef) {
  if (offstage::cuda::find_gpus().count == 0) {
    GTEST_SKIP() << "no GPU: not run";
  }
  for (OptimizerCase const& of : all_moments()) {
    for (Values const kind : all_kinds) {
      if (of.moments == Moments::int8) {
        expect_bits_of_ref(of, 256, 0, kind);
        expect_bits_of_ref(of, 10'240, 256, kind);
        continue;
      }
      for (std::size_t const count : {0, 1, 7, 127, 129, 255, 4'096, 4'097, 10'001}) {
        // Views that begin at a multiple of 16 bytes, of 8, and of neither.
        for (std::size_t const guard : {std::size_t{0}, std::size_t{4}, 1 + count % 3}) {
          expect_bits_of_ref(of, count, guard, kind);
        }
      }
    }
  }
}

TEST(OptimizeOnGpu, GivesTheBitsOfRefForEveryTypeOfNumbers) {
  if (offstage::cuda::find_gpus().count == 0) {
    GTEST_SKIP() << "no GPU: not run";
  }
  for (OptimizerCase of : all_moments()) {
    for (DType const gradient : {DType::fp32, DType::bf16, DType::fp16}) {
      for (DType const copy : {DType::fp32, DType::bf16, DType::fp16}) {
        of.gradient = gradient;
        of.copy = copy;
        expect_bits_of_ref(of, 512, 0, Values::extreme);
        of.split = copy == DType::bf16;
        expect_bits_of_ref(of, 512, 0, Values::ordinary);
        of.split = false;
      }
    }
  }
}

// More blocks of elements than the largest grid has warps.
TEST(OptimizeOnGpu, GivesTheBitsOfRefForManyElements) {
  if (offstage::cuda::find_gpus().count == 0) {
    GTEST_SKIP() << "no GPU: not run";
  }
  constexpr std::size_t count = std::size_t{8'192} * 8 * 256 + 1'000;
  std::vector<float> p(count), g(count);
  for (std::size_t i = 0; i < count; ++i) {
    p[i] = static_cast<float>(i % 1'021);
    g[i] = static_cast<float>(i % 1'019);
  }
  DeviceArray<float> const on_p{p}, on_g{g};
  DeviceArray<bfloat16> const on_copy{std::vector<bfloat16>(count)};
  OptimizerCase const of{.optimizer = Optimizer::sgd};
  OptimizerPart part{.planes = {reinterpret_cast<std::byte*>(on_p.view(0, count).data())},
                     .gradient = std::span<float const>{on_g.view(0, count)},
                     .working_copy = on_copy.view(0, count),
                     .elements = count,
                     .decayed = count / 2};
  cuda::optimize(of.layout(), part, ordinary_optimizer_step(of), nullptr);
  offstage::cuda::check(cudaDeviceSynchronize());
  std::vector<float> got(count);
  std::vector<bfloat16> got_copy(count), copy(count);
  on_p.copy_to(got);
  on_copy.copy_to(got_copy);
  part.planes = {reinterpret_cast<std::byte*>(p.data())};
  part.gradient = std::span<float const>{g};
  part.working_copy = std::span{copy};
  host::optimize(of.layout(), part, ordinary_optimizer_step(of));
  expect_same_bits(got, p, "parameter");
  expect_same_bits(got_copy, copy, "working copy");
}

TEST(OptimizeOnGpu, GivesTheBitsOfRefOnAStream) {
  if (offstage::cuda::find_gpus().count == 0) {
    GTEST_SKIP() << "no GPU: not run";
  }
  auto const device = device::make_cuda_device(0, 0);
  auto const stream = device->make_stream("update");
  OptimizerCase const of{.optimizer = Optimizer::adamw, .moments = Moments::int8, .split = true};
  OptimizerStep const step = ordinary_optimizer_step(of);
  OptimizerArrays got{of, 70'144, 0, Values::extreme};
  OptimizerArrays expected = got;
  ref::optimize(of.layout(), expected.part(), step);
  step_on_gpu(got, [&](auto const& part) {
    optimize(*stream, of.layout(), part, step);
    stream->synchronize();
  });
  expect_same_bytes(got, expected);
}

TEST(OptimizeOnGpu, ChecksItsArgumentsWithoutAGpu) {
  OptimizerCase const of{.optimizer = Optimizer::adamw};
  OptimizerArrays arrays{of, 8, 0, Values::ordinary};
  OptimizerPart part = arrays.part();
  part.elements = 7;
  OptimizerStep step = ordinary_optimizer_step(of);
  EXPECT_THROW(cuda::optimize(of.layout(), part, step, nullptr), PreconditionError);
  step.step = 0;
  EXPECT_THROW(cuda::optimize(of.layout(), arrays.part(), step, nullptr), PreconditionError);
}

}  // namespace
}  // namespace offstage::kernels
