#include "kernels/norms/rmsnorm.hpp"

#include "base/instantiate.hpp"
#include "kernels/norms/norm_rows.cuh"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::cuda {
namespace {

/// One block per row.
template <class T, class Shape>
__global__ __launch_bounds__(max_row_threads) void rmsnorm_forward_kernel(
    T const* x, T const* delta, T* sum, T const* __restrict__ weight, T* __restrict__ y,
    float* __restrict__ inverse_rms, int width, float epsilon, RowPlaces const places) {
  constexpr int V = Shape::pack;
  __shared__ float exchange[1][max_warps];
  int const packs = width / V;
  std::int64_t const row = row_begin(places, blockIdx.x, width);
  auto part = residual_row<T, Shape>(x, delta, sum, row, packs);
  float const squares = sum_row(part, packs, exchange, [](float value) { return value * value; });
  float const inverse = inverse_root(squares, width, epsilon);
  if (threadIdx.x == 0) {
    inverse_rms[blockIdx.x] = inverse;
  }
  for_packs<Shape>(packs, [&](int at, int slot) {
    float value[V], w[V];
    part.widen_to(value, at, slot);
    load_pack(w, weight + std::int64_t{at} * V);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      value[v] = value[v] * inverse * w[v];
    }
    store_pack(y + row + std::int64_t{at} * V, value);
  });
}

/// One row of a block: dx, and what it adds to the sums of d_weight.
template <class T, class Shape>
__device__ void rmsnorm_backward_row(NormRows<T> const& a, std::int64_t r,
                                     ColumnSums<Shape, 1>& sums, float (&exchange)[1][max_warps]) {
  constexpr int V = Shape::pack;
  int const packs = a.width / V;
  std::int64_t const row = row_begin(a.places, r, a.width);
  RowPart<T, Shape> x{a.x + row, packs}, dy{a.dy + row, packs};
  RowPart<T, Shape> dx{a.dx + row, a.add ? packs : 0};
  float const inverse = a.inverse[r];
  float dot[1] = {0};
  for_packs<Shape>(packs, [&](int at, int slot) {
    float value[V], d[V], w[V];
    x.widen_to(value, at, slot);
    dy.widen_to(d, at, slot);
    load_pack(w, a.weight + std::int64_t{at} * V);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      dot[0] += w[v] * d[v] * value[v];
    }
  });
  sum_block(dot, exchange);
  float const pull = dot[0] * inverse * inverse * inverse / static_cast<float>(a.width);
  for_packs<Shape>(packs, [&](int at, int slot) {
    float value[V], d[V], w[V], sum[V] = {0};
    x.widen_to(value, at, slot);
    dy.widen_to(d, at, slot);
    if (a.add) {
      dx.widen_to(sum, at, slot);
    }
    load_pack(w, a.weight + std::int64_t{at} * V);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      sum[v] += inverse * w[v] * d[v] - pull * value[v];
      sums.sum(0, at, slot, v) += d[v] * value[v] * inverse;
    }
    store_pack(a.dx + row + std::int64_t{at} * V, sum);
  });
}

template <class T, class Shape>
__global__ __launch_bounds__(max_row_threads) void rmsnorm_backward_kernel(NormRows<T> const a,
                                                                           float* partial) {
  for_rows_of_block<Shape, 1>(a, partial, [&](std::int64_t r, auto& sums, auto& exchange) {
    rmsnorm_backward_row(a, r, sums, exchange);
  });
}

}  // namespace

template <class T>
void rmsnorm_forward(RmsnormForward<T> const& a, CUstream_st* stream) {
  check(a);
  if (a.rows == 0) {
    return;
  }
  bool const aligned = are_wide(a.width, a.x.data(), a.delta.data(), a.sum.data(), a.y.data()) &&
                       are_wide(a.places.pitch, a.x.data()) && are_wide(0, a.weight.data());
  with_row_shape<T>(aligned, a.width, [&](auto shape) {
    launch(rmsnorm_forward_kernel<T, decltype(shape)>, {row_grid(a.rows), shape.threads}, stream,
           a.x.data(), a.delta.data(), a.sum.data(), a.weight.data(), a.y.data(),
           a.inverse_rms.data(), a.width, a.epsilon, a.places);
  });
}

template <class T>
void rmsnorm_backward(RmsnormBackward<T> const& a, std::span<std::byte> scratch,
                      CUstream_st* stream) {
  check(a);
  launch_backward<1, T>(a, nullptr, a.inverse_rms.data(), nullptr, a.add, a.places, scratch, stream,
                        [](auto shape) { return rmsnorm_backward_kernel<T, decltype(shape)>; });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, rmsnorm_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, rmsnorm_backward)

}  // namespace offstage::kernels::cuda
