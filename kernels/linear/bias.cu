#include "kernels/linear/bias.hpp"

#include "base/instantiate.hpp"
#include "kernels/cuda/column_sums.cuh"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::cuda {
namespace {

template <class T, int V>
__global__ __launch_bounds__(block_size) void bias_forward_kernel(T* __restrict__ y,
                                                                  T const* __restrict__ bias,
                                                                  std::int64_t width) {
  std::int64_t const column = pack_of_row() * V;
  if (column >= width) {
    return;
  }
  T* const at = y + std::int64_t{blockIdx.x} * width + column;
  float value[V], b[V];
  load_pack(value, at);
  load_pack(b, bias + column);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    value[v] += b[v];
  }
  store_pack(at, value);
}

/// The partial sums of one block of rows and one strip of columns, a pack of them per thread.
template <class T, int V>
__global__ __launch_bounds__(block_size) void bias_backward_kernel(T const* __restrict__ dy,
                                                                   float* __restrict__ partial,
                                                                   std::int64_t rows,
                                                                   std::int64_t width,
                                                                   std::int64_t rows_per_block) {
  std::int64_t const column = pack_of_row() * V;
  if (column >= width) {
    return;
  }
  float sum[V] = {};
  std::int64_t const first = std::int64_t{blockIdx.x} * rows_per_block;
  auto const count = static_cast<int>(min(rows_per_block, rows - first));
  add_packs<8>(sum, 0, count, [&](int i) { return dy + (first + i) * width + column; });
  store_pack(partial + std::int64_t{blockIdx.x} * width + column, sum);
}

}  // namespace

template <class T>
void bias_forward(BiasForward<T> const& a, CUstream_st* stream) {
  check(a);
  if (a.rows == 0) {
    return;
  }
  bool const aligned = are_wide(a.width, a.y.data()) && are_wide(0, a.bias.data());
  with_packs<T>(aligned, [&](auto pack) {
    launch(bias_forward_kernel<T, pack.value>, pack_grid(a.rows, a.width / pack.value), stream,
           a.y.data(), a.bias.data(), a.width);
  });
}

template <class T>
void bias_backward(BiasBackward<T> const& a, std::span<std::byte> scratch, CUstream_st* stream) {
  check(a);
  RowBlocks const blocks = row_blocks(a.rows, a.width);
  float* const partial = partial_sums(scratch, blocks, a.width);
  with_packs<T>(are_wide(a.width, a.dy.data()), [&](auto pack) {
    launch(bias_backward_kernel<T, pack.value>, pack_grid(blocks.blocks, a.width / pack.value),
           stream, a.dy.data(), partial, a.rows, a.width, blocks.rows_per_block);
  });
  combine<T>(partial, blocks, a.width, a.d_bias.data(), nullptr, stream);
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, bias_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, bias_backward)

}  // namespace offstage::kernels::cuda
