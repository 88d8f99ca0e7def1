#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/attention/calls.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_core.cuh"

/// Tiles of attention on tensor cores: how they lie in shared memory, how they come and go, and how
/// a warp reads its operands from them. D: columns of a tile, 32, 64, 96 or 128; a head of fewer
/// columns is filled up with zeros, which change no product.
namespace offstage::kernels::cuda {
namespace {

constexpr int own_rows = attention_key_tile;  // keys (or queries) of a block
constexpr int other_rows = 64;                // keys (or queries) that it takes at a time
constexpr unsigned all_lanes = 0xFFFFFFFFU;
constexpr float log2_of_e = 1.44269504088896341F;
constexpr float ln_of_2 = 0.693147180559945309F;

/// Where element (row, 8 chunk) of a tile lies. Rows are rotated so that eight of them, each at the
/// same chunk or at its neighbours, use all banks once.
template <int D>
__device__ inline int place(int row, int chunk) {
  int const turn = D % 64 == 0 ? row & 7 : (row >> 1) & 3;
  return row * D + (chunk ^ turn) * 8;
}

/// Rows of one head in global memory, from one position on.
template <class T>
struct Rows {
  T* first;
  std::int64_t stride;  ///< elements from a row to the next
  int there;            ///< rows that exist; may be more than a tile's
  int chunks;           ///< chunks of 8 elements in a row
};
/// `head`: elements of `tensor` before the head's position 0.
template <class T>
__device__ inline Rows<T> rows_of(T* tensor, std::int64_t head, std::int64_t stride, int position,
                                  AttentionHeads const& at) {
  return {tensor + head + position * stride, stride, at.sequence - position, at.width / 8};
}

/// All threads of the block begin to copy `rows` rows to `tile`, with zeros for what does not
/// exist.
template <int D, int rows, int threads, class T>
__device__ void begin_tile(T* tile, Rows<T const> const& from) {
  // As many threads to a row that all copies of a thread lie at constant distances from its first.
  constexpr int across = D % 64 == 0 ? 8 : 4;
  constexpr int down = threads / across;
  static_assert(rows % down == 0 && down % 8 == 0);
  int const row = static_cast<int>(threadIdx.x) / across;
  int const chunk = static_cast<int>(threadIdx.x) % across;
  T* const to = tile + place<D>(row, chunk);
  T const* source = from.first + row * from.stride + chunk * 8;
  std::int64_t const step = down * from.stride;
#pragma unroll
  for (int i = 0; i < rows / down; ++i) {
#pragma unroll
    for (int j = 0; j < D / 8 / across; ++j) {
      bool const there = row + i * down < from.there && chunk + j * across < from.chunks;
      copy_async(to + i * down * D + j * across * 8, there ? source + j * across * 8 : from.first,
                 there);
    }
    source += step;
  }
}

/// Tiles of the keys and values of one head: two stages, each a tile of keys and then one of
/// values, take turns, so that the next tiles come while these are worked on.
template <class T, int D, int threads, int R = other_rows>
struct KeyStages {
  static constexpr int elements = 2 * R * D;  // of a stage

  T* memory;
  T const* keys;  ///< keys from position 0 on
  AttentionHeads const& at;

  __device__ T* stage(int tile) const { return memory + tile % 2 * elements; }
  __device__ void begin(int tile) const {
    auto const from = rows_of(keys, 0, at.qkv_stride, tile * R, at);
    begin_tile<D, R, threads, T>(stage(tile), from);
    begin_tile<D, R, threads, T>(
        stage(tile) + R * D, {from.first + at.to_values(), from.stride, from.there, from.chunks});
    end_copies();
  }
  /// All threads wait until a tile that was begun is there and the one before it is done with.
  __device__ static void await() {
    await_copies<0>();
    __syncthreads();
  }
  /// Tiles with keys that a block's queries see, of which the first is `query`.
  __device__ int count(int query) const { return (min(query + own_rows, at.sequence) + R - 1) / R; }
};

/// A thread's warp, and its lane's place in the fragments of tensor_core.cuh.
struct Lane {
  int warp, lane, group, pair;
};
__device__ inline Lane this_lane() {
  auto const thread = static_cast<int>(threadIdx.x);
  return {thread / 32, thread % 32, thread % 32 / 4, 2 * (thread % 4)};
}

/// a (16, 16) from rows `row` on and columns 16 `step` on; or, transposed by the second, b (16, 16)
/// whose first index is the tile's row: b of columns 0 to 7 in r[0], r[1] and of 8 to 15 in r[2],
/// r[3].
template <int D, class T>
__device__ inline void load_a(std::uint32_t (&r)[4], T const* tile, int row, int step, int lane) {
  load_matrices(r, tile + place<D>(row + lane % 16, 2 * step + lane / 16));
}
template <int D, class T>
__device__ inline void load_b_by_rows(std::uint32_t (&r)[4], T const* tile, int row, int step,
                                      int lane) {
  load_matrices_transposed(r, tile + place<D>(row + lane % 16, 2 * step + lane / 16));
}
/// b (16, 16) whose second index is the tile's row; r as above, by rows.
template <int D, class T>
__device__ inline void load_b_by_columns(std::uint32_t (&r)[4], T const* tile, int row, int step,
                                         int lane) {
  load_matrices(r, tile + place<D>(row + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
}

/// a (16, D) of a warp: rows `row` on of a tile, in registers once `take` was called, or else read
/// anew each time.
template <class T, int D, bool in_registers>
struct Operand {
  T const* tile;
  int row;
  int lane;
  std::uint32_t taken[in_registers ? D / 16 : 1][4];

  __device__ void take() {
    if constexpr (in_registers) {
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
        load_a<D>(taken[step], tile, row, step, lane);
      }
    }
  }
  __device__ void get(std::uint32_t (&a)[4], int step) const {
    if constexpr (in_registers) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        a[i] = taken[step][i];
      }
    } else {
      load_a<D>(a, tile, row, step, lane);
    }
  }
};

/// d0, d1 += a b: columns 0 to 7 and 8 to 15.
template <class T>
__device__ inline void multiply_add_16(float (&d0)[4], float (&d1)[4], std::uint32_t const (&a)[4],
                                       std::uint32_t const (&b)[4]) {
  std::uint32_t const b0[2] = {b[0], b[1]};
  std::uint32_t const b1[2] = {b[2], b[3]};
  multiply_add<T>(d0, a, b0);
  multiply_add<T>(d1, a, b1);
}

/// sums (16 halves, D) += a b: 16 columns of a for as many rows of `tile`, from `row` on.
template <class T, int D, int halves>
__device__ inline void add_product(float (&sums)[halves][D / 8][4],
                                   std::uint32_t const (&a)[halves][4], T const* tile, int row,
                                   int lane) {
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    std::uint32_t b[4];
    load_b_by_rows<D>(b, tile, row, step, lane);
#pragma unroll
    for (int h = 0; h < halves; ++h) {
      multiply_add_16<T>(sums[h][2 * step], sums[h][2 * step + 1], a[h], b);
    }
  }
}

/// a (16, 16) of what products left: d0 its first eight columns, d1 the others.
template <class T>
__device__ inline void as_a(std::uint32_t (&a)[4], float const (&d0)[4], float const (&d1)[4]) {
  a[0] = pack<T>(d0[0], d0[1]);
  a[1] = pack<T>(d0[2], d0[3]);
  a[2] = pack<T>(d1[0], d1[1]);
  a[3] = pack<T>(d1[2], d1[3]);
}

template <class T>
__device__ inline float lower_half(std::uint32_t packed) {
  return device_load(T{static_cast<std::uint16_t>(packed & 0xFFFFU)});
}
template <class T>
__device__ inline float upper_half(std::uint32_t packed) {
  return device_load(T{static_cast<std::uint16_t>(packed >> 16)});
}

/// A warp writes (16, D) of results times their rows' factors, `upper` for rows group + 8, to a
/// tile.
template <class T, int D>
__device__ void put_rows(T* tile, int row, float const (&d)[D / 8][4], float lower, float upper,
                         Lane const& at) {
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    auto* const low = tile + place<D>(row + at.group, n) + at.pair;
    auto* const high = tile + place<D>(row + at.group + 8, n) + at.pair;
    *reinterpret_cast<std::uint32_t*>(low) = pack<T>(lower * d[n][0], lower * d[n][1]);
    *reinterpret_cast<std::uint32_t*>(high) = pack<T>(upper * d[n][2], upper * d[n][3]);
  }
}

/// A warp writes `rows` rows of a tile, from `row` on, to global memory, after __syncwarp(). `to`
/// begins at the tile.
template <int D, int rows, class T>
__device__ void store_rows(Rows<T> const& to, T const* tile, int row, int lane) {
  constexpr int chunks = D / 8;
#pragma unroll 4
  for (int i = lane; i < rows * chunks; i += 32) {
    int const r = row + i / chunks;
    int const chunk = i % chunks;
    if (r < to.there && chunk < to.chunks) {
      *reinterpret_cast<uint4*>(to.first + r * to.stride + chunk * 8) =
          *reinterpret_cast<uint4 const*>(tile + place<D>(r, chunk));
    }
  }
}

template <int count>
__device__ inline void clear(float (&d)[count][4]) {
#pragma unroll
  for (int n = 0; n < count; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d[n][i] = 0;
    }
  }
}

/// work(std::integral_constant<int, D>{}) of the least D that has room for a head.
template <class Work>
void with_width(int width, Work const& work) {
  if (width <= 32) {
    work(std::integral_constant<int, 32>{});
  } else if (width <= 64) {
    work(std::integral_constant<int, 64>{});
  } else if (width <= 96) {
    work(std::integral_constant<int, 96>{});
  } else {
    work(std::integral_constant<int, 128>{});
  }
}

/// Sums over the four lanes that share rows.
__device__ inline float sum_of_quad(float x) {
  x += __shfl_xor_sync(all_lanes, x, 1);
  return x + __shfl_xor_sync(all_lanes, x, 2);
}
__device__ inline float largest_of_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
}

}  // namespace
}  // namespace offstage::kernels::cuda
