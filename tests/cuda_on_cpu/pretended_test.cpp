#include <cublas_api.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <source_location>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "cuda_on_cpu/runtime.hpp"
#include "device/device.hpp"
#include "environment_variable.hpp"
#include "kernels/gpu_support.hpp"
#include "kernels/linear/matmul.hpp"
#include "kernels/norms/rmsnorm.hpp"
#include "platform/cuda/check.hpp"
#include "platform/cuda/gpus.hpp"

// What a machine may lack, and what may fail on a GPU, with a driver and a GPU that pretend it.
namespace offstage {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Absence = cuda::Gpus::Absence;

template <class Failure, class Work>
std::string error_of(Work const& work) {
  try {
    work();
  } catch (Failure const& error) {
    return error.what();
  }
  return "none";
}

TEST(Gpus, AreThere) {
  auto const found = cuda::find_gpus();
  EXPECT_EQ(found.count, 1);
  EXPECT_EQ(found.absence, Absence::none);
  EXPECT_THAT(found.why, IsEmpty());
}

TEST(Gpus, OfADriverThatIsTooOldAreUnusableAndBothVersionsAreSaid) {
  EnvironmentVariable const old{"CUDA_ON_CPU_DRIVER", "11040"};
  auto const found = cuda::find_gpus();
  EXPECT_EQ(found.count, 0);
  EXPECT_EQ(found.absence, Absence::unusable);
  EXPECT_THAT(found.why, AllOf(HasSubstr("driver"), HasSubstr("up to 11.4"),
                               HasSubstr(fmt::format("with {}.{};", CUDART_VERSION / 1000,
                                                     CUDART_VERSION % 1000 / 10))));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "or the next launch would fail";
}

TEST(Gpus, WithoutADriverAreNotMissed) {
  EnvironmentVariable const none{"CUDA_ON_CPU_DRIVER", "0"};
  auto const found = cuda::find_gpus();
  EXPECT_EQ(found.absence, Absence::no_driver);
  EXPECT_THAT(found.why, HasSubstr("no NVIDIA driver"));
}

TEST(Gpus, ThatTheDriverDoesNotShowMayBeHidden) {
  EnvironmentVariable const none{"CUDA_ON_CPU_DEVICES", "0"};
  auto const found = cuda::find_gpus();
  EXPECT_EQ(found.absence, Absence::no_device);
  EXPECT_THAT(found.why, HasSubstr("CUDA_VISIBLE_DEVICES"));
  EXPECT_THAT(error_of<cuda::CudaError>([] { (void)device::make_cuda_device(0, 0); }),
              AllOf(HasSubstr("there is no GPU 0"), HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(Capability, BelowEightIsRefusedByName) {
  EnvironmentVariable const turing{"CUDA_ON_CPU_CAPABILITY", "7.5"};
  EXPECT_THAT(error_of<UsageError>([] { (void)device::make_cuda_device(0, 0); }),
              AllOf(HasSubstr("GPU 0 (CUDA on the CPU) has compute capability 7.5"),
                    HasSubstr("8.0"), HasSubstr("device.kind=host")));
}

TEST(Capability, OfEightAndMoreIsTakenWhateverItsSharedMemory) {
  for (char const* const capability : {"8.0", "8.6", "8.9", "9.0", "10.0", "12.0"}) {
    EnvironmentVariable const gpu{"CUDA_ON_CPU_CAPABILITY", capability};
    EXPECT_NO_THROW((void)device::make_cuda_device(0, 0)) << capability;
  }
}

TEST(Capability, WithoutRoomForTheKernelsIsRefused) {
  EXPECT_THAT(error_of<UsageError>([] {
                cuda::require_capable("a GPU",
                                      {.major = 9, .shared_bytes = cuda::least_shared_bytes - 1});
              }),
              HasSubstr("shared memory"));
}

TEST(Libraries, AreNamedWithTheirVersion) {
  EXPECT_EQ(device::make_cuda_device(0, 0)->libraries(),
            fmt::format("cuBLASLt {}.{}.{}", CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH));
  EXPECT_THAT(device::make_host_device(0)->libraries(), IsEmpty());
}

/// RMSNorm of a row on a stream of a device that checks, or not.
class KernelThatFails : public testing::Test {
 protected:
  ~KernelThatFails() override { cuda_on_cpu::break_kernel(0); }

  void run(device::Check check) {
    auto const gpu = device::make_cuda_device(0, 0, 1, check);
    auto const stream = gpu->make_calling_stream("compute");
    kernels::DeviceArray<float> const x{{1, 2, 3, 4}}, weight{{1, 1, 1, 1}}, y{{0, 0, 0, 0}};
    kernels::DeviceArray<float> const inverse{{0}};
    cuda_on_cpu::break_kernel(2);
    auto const norm = [&] {
      kernels::rmsnorm_forward<float>(*stream, {.x = x.view(0, 4),
                                                .delta = {},
                                                .sum = {},
                                                .weight = weight.view(0, 4),
                                                .y = y.view(0, 4),
                                                .inverse_rms = inverse.view(0, 1),
                                                .rows = 1,
                                                .width = 4,
                                                .epsilon = 1e-5});
    };
    launches = error_of<cuda::CudaError>([&] {
      norm();
      norm();
    });
    later = error_of<cuda::CudaError>([&] { stream->synchronize(); });
    cuda_on_cpu::break_kernel(0);
  }

  std::string launches,
      later;  ///< what was thrown when kernels were launched, and by a wait after it
};

TEST_F(KernelThatFails, IsNamedWithItsCallerWhereLaunchesAreWaitedFor) {
  run(device::Check::launches);
  EXPECT_THAT(launches, AllOf(HasSubstr("offstage::kernels::cuda::kernel()"),
                              HasSubstr("illegal memory access"), HasSubstr("rmsnorm.cu:"),
                              HasSubstr("rmsnorm_forward"), HasSubstr("float"),
                              Not(HasSubstr("launch.cuh"))));
  EXPECT_FALSE(cuda::launches_wait()) << "the device is gone";
}

TEST_F(KernelThatFails, ShowsLaterElseAndTheErrorSaysHowToFindIt) {
  run(device::Check::off);
  EXPECT_THAT(later, AllOf(HasSubstr("illegal memory access"), HasSubstr("device.check=launches")));
}

TEST(Launch, ThatCannotBeNamesTheKernelAndItsCaller) {
  auto const caller = std::source_location::current();
  cuda::Launch const launch{static_cast<void const*>(nullptr), nullptr, caller};
  EXPECT_NO_THROW(launch.check(cudaSuccess));
  EXPECT_THAT(
      error_of<cuda::CudaError>([&] { launch.check(cudaErrorInvalidConfiguration); }),
      AllOf(HasSubstr("offstage::kernels::cuda::kernel(): invalid configuration argument, "
                      "launched by"),
            HasSubstr("TestBody"), HasSubstr(fmt::format("pretended_test.cpp:{}", caller.line()))));
}

/// (8, 16) x (16, n) with a bias, twice; n decides what the stand-in for cuBLASLt does with it.
std::vector<float> products_with_bias(std::int64_t n, device::Check check = device::Check::off) {
  auto const gpu = device::make_cuda_device(0, 0, 1, check);
  auto const stream = gpu->make_calling_stream("compute");
  auto const columns = static_cast<std::size_t>(n);
  kernels::DeviceArray<float> const a{std::vector(8 * 16, 0.5F)},
      b{std::vector(16 * columns, 2.0F)};
  kernels::DeviceArray<float> const bias{std::vector(columns, 3.0F)},
      c{std::vector(8 * columns, -1.0F)};
  std::vector<float> result(8 * columns);
  for (int i = 0; i < 2; ++i) {
    kernels::matmul<float, float>(*stream, {.a = a.view(0, 8 * 16).data(),
                                            .b = b.view(0, 16 * columns).data(),
                                            .c = c.view(0, 8 * columns).data(),
                                            .m = 8,
                                            .n = n,
                                            .k = 16,
                                            .bias = bias.view(0, columns).data()});
  }
  stream->synchronize();
  c.copy_to(result);
  return result;
}

TEST(ProductWithABias, ThatTheCallRefusesIsDoneInTwoStepsAndNotAskedForAgain) {
  for (std::int64_t const n : {6, 14, 22}) {  // INVALID_VALUE, NOT_SUPPORTED
    auto const before = cuda_on_cpu::refused_products();
    EXPECT_THAT(products_with_bias(n), testing::Each(19.0F)) << n;
    EXPECT_EQ(cuda_on_cpu::refused_products(), before + 1) << n;
  }
}

TEST(ProductWithABias, ThatIsTakenIsOneCall) {
  auto const before = cuda_on_cpu::refused_products();
  EXPECT_THAT(products_with_bias(16), testing::Each(19.0F));
  EXPECT_EQ(cuda_on_cpu::refused_products(), before);
}

TEST(ProductThatFails, IsNamedWhereLaunchesAreWaitedFor) {
  cuda_on_cpu::break_kernel(1);
  EXPECT_THAT(
      error_of<cuda::CudaError>([] { (void)products_with_bias(16, device::Check::launches); }),
      AllOf(HasSubstr("f32 (8, 16) x (16, 16) with a bias to f32"),
            HasSubstr("illegal memory access")));
  cuda_on_cpu::break_kernel(0);
}

}  // namespace
}  // namespace offstage
