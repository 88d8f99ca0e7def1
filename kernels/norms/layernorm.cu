#include "kernels/norms/layernorm.hpp"

#include "base/instantiate.hpp"
#include "kernels/norms/norm_rows.cuh"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::cuda {
namespace {

/// One block per row.
template <class T, class Shape>
__global__ __launch_bounds__(max_row_threads) void layernorm_forward_kernel(
    T const* x, T const* delta, T* sum, T const* __restrict__ weight, T const* __restrict__ bias,
    T* __restrict__ y, float* __restrict__ mean, float* __restrict__ inverse_deviation, int width,
    float epsilon) {
  constexpr int V = Shape::pack;
  __shared__ float exchange[2][1][max_warps];
  int const packs = width / V;
  std::int64_t const row = std::int64_t{blockIdx.x} * width;
  auto part = residual_row<T, Shape>(x, delta, sum, row, packs);
  float const total = sum_row(part, packs, exchange[0], [](float value) { return value; });
  float const centre = total / static_cast<float>(width);
  float const squares = sum_row(part, packs, exchange[1],
                                [&](float value) { return (value - centre) * (value - centre); });
  float const inverse = inverse_root(squares, width, epsilon);
  if (threadIdx.x == 0) {
    mean[blockIdx.x] = centre;
    inverse_deviation[blockIdx.x] = inverse;
  }
  for_packs<Shape>(packs, [&](int at, int slot) {
    float value[V], w[V], b[V];
    part.widen_to(value, at, slot);
    load_pack(w, weight + std::int64_t{at} * V);
    load_pack(b, bias + std::int64_t{at} * V);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      value[v] = (value[v] - centre) * inverse * w[v] + b[v];
    }
    store_pack(y + row + std::int64_t{at} * V, value);
  });
}

/// One row of a block: dx, and what it adds to the sums of d_weight and d_bias.
template <class T, class Shape>
__device__ void layernorm_backward_row(NormRows<T> const& a, std::int64_t r,
                                       ColumnSums<Shape, 2>& sums,
                                       float (&exchange)[2][max_warps]) {
  constexpr int V = Shape::pack;
  int const packs = a.width / V;
  std::int64_t const row = r * a.width;
  RowPart<T, Shape> x{a.x + row, packs}, dy{a.dy + row, packs}, dx{a.dx + row, packs};
  float const mean = a.mean[r], inverse = a.inverse[r];
  float means[2] = {0, 0};  // of the gradient of the normed row, and along that row
  for_packs<Shape>(packs, [&](int at, int slot) {
    float value[V], d[V], w[V];
    x.widen_to(value, at, slot);
    dy.widen_to(d, at, slot);
    load_pack(w, a.weight + std::int64_t{at} * V);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      float const g = w[v] * d[v];
      means[0] += g;
      means[1] += g * ((value[v] - mean) * inverse);
    }
  });
  sum_block(means, exchange);
  float const shift = means[0] / static_cast<float>(a.width);
  float const stretch = means[1] / static_cast<float>(a.width);
  for_packs<Shape>(packs, [&](int at, int slot) {
    float value[V], d[V], w[V], sum[V];
    x.widen_to(value, at, slot);
    dy.widen_to(d, at, slot);
    dx.widen_to(sum, at, slot);
    load_pack(w, a.weight + std::int64_t{at} * V);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      float const normed = (value[v] - mean) * inverse;
      sum[v] += inverse * (w[v] * d[v] - shift - normed * stretch);
      sums.sum(0, at, slot, v) += d[v] * normed;
      sums.sum(1, at, slot, v) += d[v];
    }
    store_pack(a.dx + row + std::int64_t{at} * V, sum);
  });
}

template <class T, class Shape>
__global__ __launch_bounds__(max_row_threads) void layernorm_backward_kernel(NormRows<T> const a,
                                                                             float* partial) {
  for_rows_of_block<Shape, 2>(a, partial, [&](std::int64_t r, auto& sums, auto& exchange) {
    layernorm_backward_row(a, r, sums, exchange);
  });
}

}  // namespace

template <class T>
void layernorm_forward(LayernormForward<T> const& a, CUstream_st* stream) {
  check(a);
  if (a.rows == 0) {
    return;
  }
  bool const aligned = are_wide(a.width, a.x.data(), a.delta.data(), a.sum.data(), a.y.data()) &&
                       are_wide(0, a.weight.data(), a.bias.data());
  with_row_shape<T>(aligned, a.width, [&](auto shape) {
    launch(layernorm_forward_kernel<T, decltype(shape)>, {row_grid(a.rows), shape.threads}, stream,
           a.x.data(), a.delta.data(), a.sum.data(), a.weight.data(), a.bias.data(), a.y.data(),
           a.mean.data(), a.inverse_deviation.data(), a.width, a.epsilon);
  });
}

template <class T>
void layernorm_backward(LayernormBackward<T> const& a, std::span<std::byte> scratch,
                        CUstream_st* stream) {
  check(a);
  launch_backward<2, T>(a, a.mean.data(), a.inverse_deviation.data(), a.d_bias.data(), true, {},
                        scratch, stream,
                        [](auto shape) { return layernorm_backward_kernel<T, decltype(shape)>; });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, layernorm_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, layernorm_backward)

}  // namespace offstage::kernels::cuda
