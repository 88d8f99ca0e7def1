#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "base/simd.hpp"

namespace offstage::kernels {

/// Statistics of a row that backward of a layer norm needs.
struct RowStatistics {
  float mean, inverse_deviation;
};

/// The inner loops of the pointwise host kernels, on raw host addresses; most work on one row.
/// Every instruction set has one table of them (pointwise_simd.cpp). All arithmetic is FP32; a
/// result is rounded to T once.
template <class T>
struct PointwiseLoops {
  /// out = x + y; out may be x.
  void (*add)(T const* x, T const* y, T* out, std::int64_t count);
  /// sums += x
  void (*accumulate)(T const* x, float* sums, std::int64_t count);

  /// Unless delta is null, sum = x + delta, which may be x and takes its place; y = x * inverse rms
  /// * weight; returns the inverse rms.
  float (*rmsnorm_forward)(T const* x, T const* delta, T* sum, T const* weight, T* y,
                           std::int64_t width, float epsilon);
  /// dx += gradient, or dx = gradient, and then dx may be dy; d_weight += this row's part.
  void (*rmsnorm_backward)(T const* x, T const* weight, T const* dy, float inverse_rms, T* dx,
                           float* d_weight, std::int64_t width, bool add);

  /// Layer norm of a row: y = (x - mean) * inverse deviation * weight + bias. Else as above.
  RowStatistics (*layernorm_forward)(T const* x, T const* delta, T* sum, T const* weight,
                                     T const* bias, T* y, std::int64_t width, float epsilon);
  void (*layernorm_backward)(T const* x, T const* weight, T const* dy, RowStatistics row, T* dx,
                             float* d_weight, float* d_bias, std::int64_t width);

  /// Rotates `heads` heads of 2 half elements by the angles of one position; sign -1 rotates back.
  void (*rope)(T* head, std::int64_t heads, std::int64_t half, float const* cosine,
               float const* sine, float sign);

  void (*swiglu_forward)(T const* gate, T const* up, T* y, std::int64_t width);
  /// d_gate and d_up may be gate and up.
  void (*swiglu_backward)(T const* gate, T const* up, T const* dy, T* d_gate, T* d_up,
                          std::int64_t width);

  void (*gelu_forward)(T const* x, T* y, std::int64_t width);
  /// dx may be x.
  void (*gelu_backward)(T const* x, T const* dy, T* dx, std::int64_t width);
  void (*exact_gelu_forward)(T const* x, T* y, std::int64_t width);
  /// dx may be x.
  void (*exact_gelu_backward)(T const* x, T const* dy, T* dx, std::int64_t width);

  /// target[i] += sum over the listed rows r, in order, of source[r * stride + i]. `count` is at
  /// most row_block.
  void (*add_rows)(T* target, T const* source, std::int64_t stride, std::int64_t const* rows,
                   std::int64_t row_count, std::int64_t count);

  /// y[r] = sum over i < `count` of x[i] * w[r * stride + i], for r < `rows`.
  void (*row_products)(T const* x, T const* w, std::int64_t stride, float* y, std::int64_t rows,
                       std::int64_t count);
  /// y[i] = sum over r < `rows` of x[r] * w[r * stride + i], for i < `count`.
  void (*weighted_rows)(T const* x, T const* w, std::int64_t stride, float* y, std::int64_t rows,
                        std::int64_t count);

  float (*maximum)(float const* x, std::int64_t count);
  /// The sum of exp(x - shift).
  double (*sum_exp)(float const* x, float shift, std::int64_t count);
  /// y = factor * exp(x - shift)
  void (*scaled_exp)(float const* x, float shift, float factor, T* y, std::int64_t count);
};

constexpr std::int64_t row_block = 128;  // columns of add_rows: the sums stay in registers and L1

namespace baseline {
extern PointwiseLoops<float> const loops_float;
extern PointwiseLoops<bfloat16> const loops_bfloat16;
extern PointwiseLoops<float16> const loops_float16;
}  // namespace baseline
namespace avx2 {
extern PointwiseLoops<float> const loops_float;
extern PointwiseLoops<bfloat16> const loops_bfloat16;
extern PointwiseLoops<float16> const loops_float16;
}  // namespace avx2
namespace avx512 {
extern PointwiseLoops<float> const loops_float;
extern PointwiseLoops<bfloat16> const loops_bfloat16;
extern PointwiseLoops<float16> const loops_float16;
}  // namespace avx512

/// The table for this CPU; T is float, bfloat16 or float16.
template <class T>
[[nodiscard]] PointwiseLoops<T> const& pointwise_loops() noexcept;

}  // namespace offstage::kernels
