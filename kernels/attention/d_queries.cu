#include <cstddef>
#include <cstdint>

#include "base/instantiate.hpp"
#include "kernels/attention/backward.cuh"
#include "kernels/attention/calls.cuh"
#include "kernels/attention/tiles.cuh"

namespace offstage::kernels::cuda {
namespace {

/// Sums over the columns of x y, for rows group and group + 8 of each half.
template <class T, int D>
__device__ void row_products(float (&sums)[halves<D>][2], Own<T, D> const& x, T const* tile_of_y,
                             Lane const& at) {
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
    float own[2] = {0, 0};
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
      std::uint32_t a[4];
      std::uint32_t b[4];
      x[h].get(a, step);
      load_a<D>(b, tile_of_y, x[h].row, step, at.lane);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        own[i % 2] = __fmaf_rn(lower_half<T>(a[i]), lower_half<T>(b[i]), own[i % 2]);
        own[i % 2] = __fmaf_rn(upper_half<T>(a[i]), upper_half<T>(b[i]), own[i % 2]);
      }
    }
    sums[h][0] = sum_of_quad(own[0]);
    sums[h][1] = sum_of_quad(own[1]);
  }
}

/// What dQ's kernel knows of a warp's rows.
template <int D>
struct QueryRows {
  float shift[halves<D>][2];  ///< log_sum_exp in powers of two
  float delta[halves<D>][2];
};

template <class T, int D>
__device__ void know_rows(QueryRows<D>& rows, BackwardCall<T> const& call, BlockTask const& task,
                          Lane const& at) {
  float const* const log_sum_exp = call.log_sum_exp + call.at.row(task.b, task.head);
  float* const delta = call.delta + std::int64_t{task.local} * call.at.sequence;
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int const position =
          task.tile * own_rows + at.warp * warp_rows<D> + 16 * h + 8 * r + at.group;
      bool const there = position < call.at.sequence;
      rows.shift[h][r] = there ? log_sum_exp[position] * log2_of_e : 0;
      if (there && at.pair == 0) {
        delta[position] = rows.delta[h][r];
      }
    }
  }
}

/// x <- dS of 16 keys, from scores and dP.
template <int D>
__device__ void differentiate(Square<D>& x, Square<D> const& y, QueryRows<D> const& rows,
                              float scale) {
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float const weight = fast_exp2(__fmaf_rn(x[h][n][i], scale, -rows.shift[h][i / 2]));
        x[h][n][i] = weight * (y[h][n][i] - rows.delta[h][i / 2]);
      }
    }
  }
}

/// Clears what belongs to keys after a row's query; `ahead`: of the warp's first query before the
/// first key.
template <int D>
__device__ void hide(Square<D>& x, int ahead, Lane const& at) {
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
    int const last = ahead + 16 * h + at.group - at.pair;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[h][n][i] = 8 * n + i % 2 - 8 * (i / 2) > last ? 0 : x[h][n][i];
      }
    }
  }
}

/// Clears what belongs to keys, of 16 from `key` on, before the first that a row's query sees;
/// `query`: the warp's first.
template <int D>
__device__ void hide_before(Square<D>& x, AttentionHeads const& heads, int b, int query, int key,
                            Lane const& at) {
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
    int const row = query + 16 * h + at.group;
    int const first_keys[2] = {heads.first_key(b, row) - key, heads.first_key(b, row + 8) - key};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[h][n][i] = 8 * n + at.pair + i % 2 < first_keys[i / 2] ? 0 : x[h][n][i];
      }
    }
  }
}

/// A block has 128 queries of one head and takes their keys and values as forward does, R at a
/// time. Leaves delta behind.
template <class T, int D, int R>
__global__ __launch_bounds__(threads<D>,
                             blocks_of_sm<D>) void d_query_kernel(BackwardCall<T> const call,
                                                                  int tiles) {
  auto const task = query_task(call.at, call.first_unit, call.units, tiles);
  auto const at = this_lane();
  int const first = task.tile * own_rows;
  std::int64_t const query_head = call.at.query(task.b, task.head);
  std::int64_t const out_head = call.at.out(task.b, task.head);
  auto* const query_tile = reinterpret_cast<T*>(shared_memory());
  auto* const d_out_tile = query_tile + own_rows * D;
  KeyStages<T, D, threads<D>, R> const stages{
      d_out_tile + own_rows * D, call.qkv + call.at.key(task.b, task.kv_head), call.at};
  // The second stage is free until the first one is in work; of small stages this takes both.
  constexpr bool beside = stage_elements<D, R> >= own_rows * D;
  static_assert(2 * stage_elements<D, R> >= own_rows * D);
  int const first_tile = call.at.first_key(task.b, first) / R;
  auto* const out_tile = beside ? stages.stage(first_tile + 1) : stages.memory;
  begin_tile<D, own_rows, threads<D>, T>(
      query_tile, rows_of(call.qkv, query_head, call.at.qkv_stride, first, call.at));
  begin_tile<D, own_rows, threads<D>, T>(
      d_out_tile, rows_of(call.d_out, out_head, call.at.out_stride, first, call.at));
  begin_tile<D, own_rows, threads<D>, T>(
      out_tile, rows_of(call.out, out_head, call.at.out_stride, first, call.at));
  if constexpr (beside) {
    stages.begin(first_tile);
  } else {
    end_copies();
  }
  stages.await();

  Own<T, D> queries;
  Own<T, D> d_outs;
  take_own<T, D>(queries, query_tile, at);
  take_own<T, D>(d_outs, d_out_tile, at);
  QueryRows<D> rows;
  row_products<T, D>(rows.delta, d_outs, out_tile, at);
  know_rows(rows, call, task, at);
  if constexpr (!beside) {
    __syncthreads();  // all have read the outputs
    stages.begin(first_tile);
  }
  float const scale = call.at.scale * log2_of_e;
  Sums<D> sums;
  clear_sums<D>(sums);
  int const key_tiles = stages.count(first);
  // First keys that some of the warp's queries see, and that all see.
  int const query = first + at.warp * warp_rows<D>;
  int const first_seen = call.at.first_key(task.b, query);
  int const all_seen = call.at.first_key(task.b, query + warp_rows<D> - 1);
#pragma unroll 1
  for (int tile = first_tile; tile < key_tiles; ++tile) {
    stages.await();
    if (tile + 1 < key_tiles) {
      stages.begin(tile + 1);
    }
    T const* const keys = stages.stage(tile);
    int const begin = tile * R;
    int const ahead = query - begin;
#pragma unroll 1
    for (int key = max(0, first_seen - begin) / 16 * 16; key < R && key < ahead + warp_rows<D>;
         key += 16) {
      Square<D> x;
      Square<D> y;
      two_products<T, D>(x, queries, keys, y, d_outs, keys + R * D, key, at.lane);
      differentiate<D>(x, y, rows, scale);
      if (ahead - key < 15) {
        hide<D>(x, ahead - key, at);
      }
      if (begin + key < all_seen) {
        hide_before<D>(x, call.at, task.b, query, begin + key, at);
      }
      add_square<T, D>(sums, x, keys, key, at.lane);
    }
  }
  write_sums<T, D>(rows_of(call.d_qkv, query_head, call.at.qkv_stride, first, call.at), query_tile,
                   sums, call.at.scale, at);
}

}  // namespace

template <class T>
void d_queries_by_tiles(BackwardCall<T> const& call, std::size_t most_shared, CUstream_st* stream) {
  int const tiles = (call.at.sequence + own_rows - 1) / own_rows;
  std::int64_t const heads = std::int64_t{call.units} * call.at.group;
  with_width(call.at.width, [&](auto width) {
    constexpr int D = decltype(width)::value;
    with_rows<tile_bytes<D, other_rows>>(most_shared, [&](auto rows) {
      constexpr int R = decltype(rows)::value;
      static_assert(R == other_rows || tile_bytes<D, R> <= offstage::cuda::least_shared_bytes);
      launch(d_query_kernel<T, D, R>,
             Grid{attention_blocks(heads, tiles), threads<D>, tile_bytes<D, R>}, stream, call,
             tiles);
    });
  });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_HALF_TYPES, d_queries_by_tiles)

}  // namespace offstage::kernels::cuda
