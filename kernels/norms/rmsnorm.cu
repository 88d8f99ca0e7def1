#include "kernels/norms/rmsnorm.hpp"

#include "kernels/cuda/column_sums.cuh"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::cuda {
namespace {

/// One block per row.
template <class T, class Shape>
__global__ __launch_bounds__(max_row_threads) void rmsnorm_forward_kernel(
    T const* x, T const* delta, T* sum, T const* __restrict__ weight, T* __restrict__ y,
    float* __restrict__ inverse_rms, int width, float epsilon) {
  constexpr int V = Shape::pack;
  __shared__ float exchange[1][max_warps];
  int const packs = width / V;
  std::int64_t const row = std::int64_t{blockIdx.x} * width;
  auto part = residual_row<T, Shape>(x, delta, sum, row, packs);
  float squares[1] = {0};
  for_packs<Shape>(packs, [&](int at, int slot) {
    float value[V];
    part.widen_to(value, at, slot);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      squares[0] += value[v] * value[v];
    }
  });
  sum_block(squares, exchange);
  float const inverse =
      __fdiv_rn(1.0F, __fsqrt_rn(squares[0] / static_cast<float>(width) + epsilon));
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

/// The arguments of a backward kernel on a block of rows.
template <class T>
struct Rows {
  T const* x;
  T const* weight;
  T const* dy;
  float const* inverse_rms;
  T* dx;
  std::int64_t rows, rows_per_block;
  int width;
};

/// One row of a block: dx, and what it adds to the sums of d_weight.
template <class T, class Shape>
__device__ void rmsnorm_backward_row(Rows<T> const& a, std::int64_t r, ColumnSums<Shape, 1>& sums,
                                     float (&exchange)[1][max_warps]) {
  constexpr int V = Shape::pack;
  int const packs = a.width / V;
  std::int64_t const row = r * a.width;
  RowPart<T, Shape> x{a.x + row, packs}, dy{a.dy + row, packs}, dx{a.dx + row, packs};
  float const inverse = a.inverse_rms[r];
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
    float value[V], d[V], w[V], sum[V];
    x.widen_to(value, at, slot);
    dy.widen_to(d, at, slot);
    dx.widen_to(sum, at, slot);
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
__global__ __launch_bounds__(max_row_threads) void rmsnorm_backward_kernel(Rows<T> const a,
                                                                           float* partial) {
  __shared__ float exchange[2][1][max_warps];  // in turn: one barrier per row is enough
  ColumnSums<Shape, 1> sums{partial + std::int64_t{blockIdx.x} * a.width, a.width};
  std::int64_t const first = std::int64_t{blockIdx.x} * a.rows_per_block;
  std::int64_t const end = min(first + a.rows_per_block, a.rows);
  for (std::int64_t r = first; r < end; ++r) {
    rmsnorm_backward_row<T, Shape>(a, r, sums, exchange[r % 2]);
  }
  sums.hand_over();
}

}  // namespace

template <class T>
void rmsnorm_forward(RmsnormForward<T> const& a, CUstream_st* stream) {
  check(a);
  if (a.rows == 0) {
    return;
  }
  bool const aligned = are_wide(a.width, a.x.data(), a.delta.data(), a.sum.data(), a.y.data()) &&
                       are_wide(0, a.weight.data());
  with_row_shape<T>(aligned, a.width, [&](auto shape) {
    launch(rmsnorm_forward_kernel<T, decltype(shape)>, {row_grid(a.rows), shape.threads}, stream,
           a.x.data(), a.delta.data(), a.sum.data(), a.weight.data(), a.y.data(),
           a.inverse_rms.data(), a.width, a.epsilon);
  });
}

std::size_t rmsnorm_backward_scratch(std::int64_t rows, std::int64_t width) {
  return row_blocks(rows, width).scratch_bytes(width);
}

template <class T>
void rmsnorm_backward(RmsnormBackward<T> const& a, std::span<std::byte> scratch,
                      CUstream_st* stream) {
  check(a);
  RowBlocks const blocks = row_blocks(a.rows, a.width);
  float* const partial = partial_sums(scratch, blocks, a.width);
  bool const aligned =
      are_wide(a.width, a.x.data(), a.dy.data(), a.dx.data()) && are_wide(0, a.weight.data());
  with_row_shape<T>(aligned, a.width, [&](auto shape) {
    using Shape = decltype(shape);
    Rows<T> const rows{.x = a.x.data(),
                       .weight = a.weight.data(),
                       .dy = a.dy.data(),
                       .inverse_rms = a.inverse_rms.data(),
                       .dx = a.dx.data(),
                       .rows = a.rows,
                       .rows_per_block = blocks.rows_per_block,
                       .width = static_cast<int>(a.width)};
    launch(rmsnorm_backward_kernel<T, Shape>,
           {static_cast<unsigned>(blocks.blocks), shape.threads,
            ColumnSums<Shape, 1>::shared_bytes(a.width)},
           stream, rows, partial);
  });
  combine<T>(partial, blocks, a.width, a.d_weight.data(), nullptr, stream);
}

template void rmsnorm_forward(RmsnormForward<float> const&, CUstream_st*);
template void rmsnorm_forward(RmsnormForward<bfloat16> const&, CUstream_st*);
template void rmsnorm_forward(RmsnormForward<float16> const&, CUstream_st*);
template void rmsnorm_backward(RmsnormBackward<float> const&, std::span<std::byte>, CUstream_st*);
template void rmsnorm_backward(RmsnormBackward<bfloat16> const&, std::span<std::byte>,
                               CUstream_st*);
template void rmsnorm_backward(RmsnormBackward<float16> const&, std::span<std::byte>, CUstream_st*);

}  // namespace offstage::kernels::cuda
