#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/norms/rmsnorm.hpp"

/// Device code that the kernels of RMSNorm and LayerNorm share.
namespace offstage::kernels::cuda {
namespace {

/// RowPlaces::begin, of fewer than 2^31 rows: a division of 64 bits would be a call of a function.
__device__ inline std::int64_t row_begin(RowPlaces const& places, std::int64_t r, int width) {
  if (places.pitch == 0) {
    return r * width;
  }
  auto const row = static_cast<unsigned>(r);
  auto const groups = static_cast<unsigned>(places.groups);
  return row / groups * places.pitch + std::int64_t{row % groups} * width;
}

/// The sum of f(element) over a block's row, of which the calling thread has `part`.
template <class T, class Shape, class F>
__device__ float sum_row(RowPart<T, Shape>& part, int packs, float (&exchange)[1][max_warps],
                         F const& f) {
  float sum[1] = {0};
  for_packs<Shape>(packs, [&](int at, int slot) {
    float value[Shape::pack];
    part.widen_to(value, at, slot);
#pragma unroll
    for (int v = 0; v < Shape::pack; ++v) {
      sum[0] += f(value[v]);
    }
  });
  sum_block(sum, exchange);
  return sum[0];
}

/// One over the root of the mean of squares, of which a row's sum is given.
__device__ inline float inverse_root(float squares, int width, float epsilon) {
  return __fdiv_rn(1.0F, __fsqrt_rn(squares / static_cast<float>(width) + epsilon));
}

/// The arguments of a backward kernel, each of whose blocks has rows_per_block rows.
template <class T>
struct NormRows {
  T const* x;
  T const* weight;
  T const* dy;
  float const* mean;     ///< null for RMSNorm
  float const* inverse;  ///< inverse of the rows' RMS or deviation
  T* dx;
  std::int64_t rows, rows_per_block;
  int width;
  bool add;          ///< dx is added to
  RowPlaces places;  ///< places of x, dy and dx
};

template <int outputs>
using Exchange = float[2][outputs][max_warps];
template <int outputs>
constexpr std::size_t exchange_bytes = sizeof(Exchange<outputs>);

/// backward(r, sums, exchange) for each row r of the block, which adds the row's part to the
/// ColumnSums `sums`.
template <class Shape, int outputs, class T, class Backward>
__device__ void for_rows_of_block(NormRows<T> const& a, float* partial, Backward const& backward) {
  __shared__ Exchange<outputs> exchange;  // in turn: one barrier per row is enough
  ColumnSums<Shape, outputs> sums{partial + std::int64_t{blockIdx.x} * outputs * a.width, a.width};
  std::int64_t const first = std::int64_t{blockIdx.x} * a.rows_per_block;
  std::int64_t const end = min(first + a.rows_per_block, a.rows);
  for (std::int64_t r = first; r < end; ++r) {
    backward(r, sums, exchange[r % 2]);
  }
  sums.hand_over();
}

/// Queues kernel_of(shape) on the rows of `a`, which is RmsnormBackward or LayernormBackward, and
/// adds up its sums: d_weight and, of two outputs, d_bias.
template <int outputs, class T, class Arguments, class KernelOf>
void launch_backward(Arguments const& a, float const* mean, float const* inverse, T* d_bias,
                     bool add, RowPlaces const& places, std::span<std::byte> scratch,
                     CUstream_st* stream, KernelOf const& kernel_of) {
  std::int64_t const columns = outputs * a.width;
  RowBlocks const blocks = row_blocks(a.rows, columns);
  static_cast<void>(row_grid(a.rows));  // row_begin()
  float* const partial = partial_sums(scratch, blocks, columns);
  bool const aligned = are_wide(a.width, a.x.data(), a.dy.data(), a.dx.data()) &&
                       are_wide(places.pitch, a.x.data()) && are_wide(0, a.weight.data());
  with_row_shape<T>(aligned, a.width, [&](auto shape) {
    NormRows<T> const rows{.x = a.x.data(),
                           .weight = a.weight.data(),
                           .dy = a.dy.data(),
                           .mean = mean,
                           .inverse = inverse,
                           .dx = a.dx.data(),
                           .rows = a.rows,
                           .rows_per_block = blocks.rows_per_block,
                           .width = static_cast<int>(a.width),
                           .add = add,
                           .places = places};
    auto const launch_with = [&](auto chosen) {
      launch(kernel_of(chosen),
             {static_cast<unsigned>(blocks.blocks), chosen.threads,
              ColumnSums<decltype(chosen), outputs>::shared_bytes(a.width)},
             stream, rows, partial);
    };
    if (has_room(ColumnSums<decltype(shape), outputs>::shared_bytes(a.width) +
                 exchange_bytes<outputs>)) {
      launch_with(shape);
    } else {
      launch_with(shape_of_any_row(a.width));
    }
  });
  combine<T>(partial, blocks, a.width, a.d_weight.data(), d_bias, stream);
}

}  // namespace
}  // namespace offstage::kernels::cuda
