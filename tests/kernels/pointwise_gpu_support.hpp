#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "base/dtype.hpp"
#include "device/device.hpp"
#include "kernels/gpu_support.hpp"
#include "kernels/pointwise_support.hpp"
#include "platform/cuda/gpus.hpp"

namespace offstage::kernels {

using GpuElements = testing::Types<float, bfloat16, float16>;

/// The GPU's calling stream, which has scratch memory; its tests are skipped where there is no GPU.
class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (offstage::cuda::find_gpus().count == 0) {
      GTEST_SKIP() << "no GPU: not run";
    }
    device = device::make_cuda_device(0, 0);
    stream = device->make_calling_stream("pointwise");
  }

  std::unique_ptr<device::Device> device;
  std::unique_ptr<device::Stream> stream;
};

/// Rows, and the elements by which their arrays begin beside a multiple of 16 bytes.
struct Placed {
  Shape shape;
  std::size_t offset;
};
/// Widths of one element and of no multiple of any vector, and every way in which a block holds a
/// row; more rows than there are blocks in a sum over rows.
constexpr Placed placed_shapes[] = {
    {{1, 1}, 0},     {{3, 37}, 0},    {{70, 200}, 0},  {{37, 64}, 1},  {{2500, 8}, 0},
    {{5, 2048}, 0},  {{3, 4096}, 0},  {{601, 33}, 3},  {{9, 768}, 0},  {{2, 8192}, 0},
    {{2, 16384}, 0}, {{2, 16383}, 0}, {{1, 32768}, 0}, {{2, 6144}, 0}, {{2, 12288}, 0},
    {{3, 2056}, 0}};  // the last packs of a warp of their own

/// A device copy of an array between elements that nobody may write.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::vector<T> const& values, std::size_t offset = 0)
      : front_{64 / sizeof(T) + offset}, count_{values.size()}, there_{padded(values)} {}
  [[nodiscard]] std::span<T> view() const { return there_.view(front_, count_); }
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> all(front_ + count_ + guards);
    there_.copy_to(all);
    auto const untouched = [](T value) { return value == guard(); };
    auto const begin = all.begin() + static_cast<std::ptrdiff_t>(front_);
    auto const end = begin + static_cast<std::ptrdiff_t>(count_);
    EXPECT_TRUE(std::all_of(all.begin(), begin, untouched)) << "written before its array";
    EXPECT_TRUE(std::all_of(end, all.end(), untouched)) << "written behind its array";
    return {begin, end};
  }

 private:
  static constexpr std::size_t guards = 9;
  static T guard() { return store<T>(77.0F); }
  [[nodiscard]] std::vector<T> padded(std::vector<T> const& values) const {
    std::vector<T> all(front_ + count_ + guards, guard());
    std::copy(values.begin(), values.end(), all.begin() + static_cast<std::ptrdiff_t>(front_));
    return all;
  }
  std::size_t front_, count_;
  DeviceArray<T> there_;
};

template <class T>
std::vector<T> poison(std::int64_t count) {
  return std::vector<T>(static_cast<std::size_t>(count), store<T>(NAN));
}

/// Rounded to T from sums in FP32 of any order; `exact`: in double, from the same inputs.
template <class T>
void expect_rounded(std::vector<T> const& got, std::vector<double> const& exact) {
  constexpr double half_a_place = std::is_same_v<T, bfloat16>  ? 1.0 / 256
                                  : std::is_same_v<T, float16> ? 1.0 / 2048
                                                               : 4e-6;
  constexpr double half_the_smallest = std::is_same_v<T, float16> ? 0x1p-25 : 0.0;
  ASSERT_EQ(got.size(), exact.size());
  double largest = 0;
  for (double const value : exact) {
    largest = std::max(largest, std::abs(value));
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    double const tolerance =
        std::abs(exact[i]) * half_a_place * 1.01 + half_the_smallest + largest * 4e-6;
    ASSERT_NEAR(static_cast<double>(load(got[i])), exact[i], tolerance) << "at " << i;
  }
}

/// What compute() gives, twice the same.
template <class Compute>
auto same_twice(Compute const& compute) {
  auto const result = compute();
  EXPECT_TRUE(result == compute()) << "another run gave other bits";
  return result;
}

}  // namespace offstage::kernels
