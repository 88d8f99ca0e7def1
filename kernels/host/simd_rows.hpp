#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/host/simd_exp.hpp"

/// One row times a matrix that lies by its columns or by its rows.
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

/// y[i] = sum over r < `rows` of weights[r] * w[r * stride + i], for i < `count`.
///
/// Four rows at a time, so that y is read and written once for them.
template <class W, class T>
void weighted_rows(W const* weights, T const* w, std::int64_t stride, float* y, std::int64_t rows,
                   std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    y[i] = 0;
  }
  auto const fours = rows / 4 * 4;
  for (std::int64_t r = 0; r < fours; r += 4) {
    T const* const row = w + r * stride;
    float const a = load(weights[r]);
    float const b = load(weights[r + 1]);
    float const c = load(weights[r + 2]);
    float const d = load(weights[r + 3]);
#pragma omp simd simdlen(16)
    for (std::int64_t i = 0; i < count; ++i) {
      float const two = multiply_add(b, load(row[stride + i]), multiply_add(a, load(row[i]), y[i]));
      y[i] = multiply_add(d, load(row[3 * stride + i]),
                          multiply_add(c, load(row[2 * stride + i]), two));
    }
  }
  for (std::int64_t r = fours; r < rows; ++r) {
    T const* const row = w + r * stride;
    float const weight = load(weights[r]);
#pragma omp simd simdlen(16)
    for (std::int64_t i = 0; i < count; ++i) {
      y[i] = multiply_add(weight, load(row[i]), y[i]);
    }
  }
}

}  // namespace
}  // namespace offstage::kernels
