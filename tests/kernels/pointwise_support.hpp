#pragma once

#include <gtest/gtest.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "device/device.hpp"

namespace offstage::kernels {

struct Shape {
  std::int64_t rows, width;
};
/// One element, widths that are no multiple of any vector, and more rows than one block of a sum.
constexpr Shape odd_shapes[] = {{1, 1}, {1, 37}, {3, 64}, {150, 33}, {70, 200}};

template <class To, class From>
std::vector<To> convert(std::vector<From> const& values) {
  std::vector<To> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(),
                 [](From value) { return store<To>(load(value)); });
  return result;
}

/// Values in [-scale, scale] that every element type holds exactly, float16 unless they are below
/// 2^-17.
template <class T = double>
std::vector<T> random_values(std::int64_t count, unsigned seed, double scale = 1.0) {
  std::mt19937_64 engine{seed};
  std::uniform_real_distribution<double> uniform{-scale, scale};
  std::vector<bfloat16> values(count);
  for (bfloat16& value : values) {
    value = store<bfloat16>(uniform(engine));
  }
  return convert<T>(values);
}

inline std::vector<std::int32_t> random_tokens(std::int64_t count, std::int64_t vocab,
                                               unsigned seed) {
  std::mt19937_64 engine{seed};
  std::uniform_int_distribution<std::int32_t> uniform{0, static_cast<std::int32_t>(vocab - 1)};
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) {
    token = uniform(engine);
  }
  return tokens;
}

inline double dot(std::vector<double> const& a, std::vector<double> const& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

/// Every difference is at most `tolerance` times the largest expected entry.
inline void expect_close(std::vector<double> const& got, std::vector<double> const& expected,
                         double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  double largest = 0;
  for (double const value : expected) {
    largest = std::max(largest, std::abs(value));
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance * largest) << "at " << i;
  }
}

/// FP32 sums in another order: a few entries round to the neighbouring 16-bit number, most are
/// equal.
template <class T>
void expect_same_rounding(std::vector<T> const& got, std::vector<T> const& expected) {
  constexpr double last_place = std::is_same_v<T, bfloat16> ? 1.0 / 128 : 1.0 / 1024;
  ASSERT_EQ(got.size(), expected.size());
  double largest = 0;
  for (T const value : expected) {
    largest = std::max(largest, std::abs(static_cast<double>(to_float(value))));
  }
  std::size_t different = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    double const value = to_float(expected[i]);
    ASSERT_NEAR(to_float(got[i]), value, std::abs(value) * last_place + 1e-5 * largest)
        << "at " << i;
    different += got[i] == expected[i] ? 0 : 1;
  }
  EXPECT_LE(different, 2 + got.size() / 50);
}

/// The gradient of value() in `at`, which value() reads.
template <class Function>
std::vector<double> central_differences(std::vector<double>& at, Function const& value) {
  constexpr double step = 1e-5;
  std::vector<double> gradient(at.size());
  for (std::size_t i = 0; i < at.size(); ++i) {
    double const middle = at[i];
    at[i] = middle + step;
    double const above = value();
    at[i] = middle - step;
    double const below = value();
    at[i] = middle;
    gradient[i] = (above - below) / (2 * step);
  }
  return gradient;
}

/// function() under `threads` OpenMP threads.
template <class Function>
auto with_threads([[maybe_unused]] int threads, Function const& function) {
#ifdef _OPENMP
  int const before = omp_get_max_threads();
  omp_set_num_threads(threads);
  auto const result = function();
  omp_set_num_threads(before);
  return result;
#else
  return function();
#endif
}

/// Runs work(stream) on an emulated device and waits for it.
template <class Work>
void on_stream(Work const& work) {
  auto const device = device::make_host_device(0);
  auto const stream = device->make_calling_stream("test");
  work(*stream);
  stream->synchronize();
}

}  // namespace offstage::kernels
