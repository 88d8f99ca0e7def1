#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/attention/calls.cuh"
#include "kernels/attention/tiles.cuh"
#include "platform/cuda/gpus.hpp"

/// Device code that the kernels of dQ and dK share. They make seven products. One kernel with sums
/// of dQ in global memory would make five, since scores and dP come up twice here. In return
/// nothing is added in an order that differs from run to run, and no block waits for another.
namespace offstage::kernels::cuda {
namespace {

/// 16 rows each in a warp, which share what it reads of the other tiles; as many as its sums leave
/// registers for.
template <int D>
constexpr int halves = D <= 64 ? 2 : 1;
template <int D>
constexpr int warp_rows = 16 * halves<D>;
template <int D>
constexpr int threads = own_rows / warp_rows<D> * 32;
template <int D>
constexpr int blocks_of_sm = D <= 64 ? 2 : 1;

/// The block's two own tiles, then two stages of two other tiles, of R rows each.
template <int D, int R>
constexpr int stage_elements = 2 * R* D;
template <int D, int R>
constexpr std::size_t tile_bytes = 2 * (2 * own_rows * D + 2 * stage_elements<D, R>);
template <class T, int D>
using Own = Operand<T, D, true>[halves<D>];
template <int D>
using Square = float[halves<D>][2][4];  // (warp_rows, 16)
template <int D>
using Sums = float[halves<D>][D / 8][4];  // (warp_rows, D)

/// work(std::integral_constant<int, R>{}) of the rows that other tiles have: other_rows, with which
/// a block takes `bytes` of shared memory, or if it cannot have so much, half of them.
template <std::size_t bytes, class Work>
void with_rows(std::size_t most_shared, Work const& work) {
  if constexpr (bytes > offstage::cuda::least_shared_bytes) {
    if (bytes > most_shared) {
      return work(std::integral_constant<int, other_rows / 2>{});
    }
  }
  work(std::integral_constant<int, other_rows>{});
}

template <int D>
__device__ inline void clear_sums(Sums<D>& sums) {
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
    clear(sums[h]);
  }
}

template <class T, int D>
__device__ void take_own(Own<T, D>& own, T const* tile, Lane const& at) {
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
    own[h].tile = tile;
    own[h].row = at.warp * warp_rows<D> + 16 * h;
    own[h].lane = at.lane;
    own[h].take();
  }
}

/// x = a tile_of_x^T, y = c tile_of_y^T for 16 rows of those tiles, from `row` on.
template <class T, int D>
__device__ void two_products(Square<D>& x, Own<T, D> const& a, T const* tile_of_x, Square<D>& y,
                             Own<T, D> const& c, T const* tile_of_y, int row, int lane) {
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
    clear(x[h]);
    clear(y[h]);
  }
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    std::uint32_t of_x[4];
    std::uint32_t of_y[4];
    load_b_by_columns<D>(of_x, tile_of_x, row, step, lane);
    load_b_by_columns<D>(of_y, tile_of_y, row, step, lane);
#pragma unroll
    for (int h = 0; h < halves<D>; ++h) {
      std::uint32_t left[4];
      a[h].get(left, step);
      multiply_add_16<T>(x[h][0], x[h][1], left, of_x);
      c[h].get(left, step);
      multiply_add_16<T>(y[h][0], y[h][1], left, of_y);
    }
  }
}

/// sums += x times 16 rows of a tile, from `row` on.
template <class T, int D>
__device__ void add_square(Sums<D>& sums, Square<D> const& x, T const* tile, int row, int lane) {
  std::uint32_t a[halves<D>][4];
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
    as_a<T>(a[h], x[h][0], x[h][1]);
  }
  add_product<T, D>(sums, a, tile, row, lane);
}

/// Writes a warp's rows of sums times `factor` to global memory, by way of its part of `tile`.
template <class T, int D>
__device__ void write_sums(Rows<T> const& to, T* tile, Sums<D> const& sums, float factor,
                           Lane const& at) {
  int const row = at.warp * warp_rows<D>;
  __syncwarp();
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
    put_rows<T, D>(tile, row + 16 * h, sums[h], factor, factor, at);
  }
  __syncwarp();
  store_rows<D, warp_rows<D>>(to, tile, row, at.lane);
}

}  // namespace
}  // namespace offstage::kernels::cuda
