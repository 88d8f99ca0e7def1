#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/host/simd_exp.hpp"

/// Products of one row with many.
namespace offstage::kernels {
namespace {  // sources compiled for one instruction set must not share it (base/simd.hpp)

/// y[r] = sum over i < `count` of x[i] * w[r * stride + i], for r < `rows`.
///
/// Four rows at a time, so that x is read once for them and four sums are under way. Of bf16 GCC 12
/// would take 32 elements at a time, and spend a third more on their halves in short rows.
template <class T>
void row_products(T const* x, T const* w, std::int64_t stride, float* y, std::int64_t rows,
                  std::int64_t count) {
  auto const fours = rows / 4 * 4;
  for (std::int64_t r = 0; r < fours; r += 4) {
    T const* const row = w + r * stride;
    float a = 0;
    float b = 0;
    float c = 0;
    float d = 0;
#pragma omp simd simdlen(16) reduction(+ : a, b, c, d)
    for (std::int64_t i = 0; i < count; ++i) {
      float const value = load(x[i]);
      a = multiply_add(value, load(row[i]), a);
      b = multiply_add(value, load(row[stride + i]), b);
      c = multiply_add(value, load(row[2 * stride + i]), c);
      d = multiply_add(value, load(row[3 * stride + i]), d);
    }
    y[r] = a;
    y[r + 1] = b;
    y[r + 2] = c;
    y[r + 3] = d;
  }
  for (std::int64_t r = fours; r < rows; ++r) {
    T const* const row = w + r * stride;
    float sum = 0;
#pragma omp simd simdlen(16) reduction(+ : sum)
    for (std::int64_t i = 0; i < count; ++i) {
      sum = multiply_add(load(x[i]), load(row[i]), sum);
    }
    y[r] = sum;
  }
}

}  // namespace
}  // namespace offstage::kernels
