#include <cmath>
#include <cstddef>
#include <cstdint>

#include "attention_calls.cuh"
#include "attention_tiles.cuh"

// Seven products where one kernel with sums of dQ in global memory would make five: scores and dP come up twice. In
// return nothing is added in an order that differs from run to run, and no block waits for another.
namespace offstage::kernels::cuda {
namespace {

/// 16 rows each in a warp, which share what it reads of the other tiles; as many as its sums leave registers for.
template <int D>
constexpr int halves = D <= 64 ? 2 : 1;
template <int D>
constexpr int warp_rows = 16 * halves<D>;
template <int D>
constexpr int threads = own_rows / warp_rows<D> * 32;
template <int D>
constexpr int blocks_of_sm = D <= 64 ? 2 : 1;

/// The block's two own tiles, then two stages of two other tiles.
template <int D>
constexpr int stage_elements = 2 * other_rows* D;
template <int D>
constexpr std::size_t tile_bytes = 2 * (2 * own_rows * D + 2 * stage_elements<D>);
/// Per stage the shift and delta of its queries.
constexpr int statistics = 2 * other_rows;
constexpr std::size_t statistics_bytes = 2 * statistics * sizeof(float);

template <class T, int D>
using Own = Operand<T, D, true>[halves<D>];
template <int D>
using Square = float[halves<D>][2][4];  // (warp_rows, 16)
template <int D>
using Sums = float[halves<D>][D / 8][4];  // (warp_rows, D)

template <class T, int D>
__device__ void place_own(Own<T, D>& own, T const* tile, Lane const& at) {
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

/// x <- dS of 16 keys; `ahead`: of the warp's first row before the first of them.
template <int D>
__device__ void differentiate(Square<D>& x, Square<D> const& y, QueryRows<D> const& rows,
                              float scale, int ahead, Lane const& at) {
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
    int const last = ahead + 16 * h + at.group - at.pair;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int const r = i / 2;
        float const weight = fast_exp2(__fmaf_rn(x[h][n][i], scale, -rows.shift[h][r]));
        float const change = weight * (y[h][n][i] - rows.delta[h][r]);
        x[h][n][i] = 8 * n + i % 2 - 8 * r > last ? 0 : change;
      }
    }
  }
}

/// Of a warp: its rows of sums times `factor` to global memory, by way of its part of `tile`.
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

/// A block has 128 queries of one head and takes their keys and values as forward does. Leaves delta behind.
template <class T, int D>
__global__ __launch_bounds__(threads<D>,
                             blocks_of_sm<D>) void d_query_kernel(BackwardCall<T> const call,
                                                                  int tiles) {
  auto const task = query_task(call.at, call.first_unit, call.units, tiles);
  auto const at = this_lane();
  auto const stride = call.at.qkv_stride;
  auto const out_stride = call.at.out_stride;
  int const sequence = call.at.sequence;
  int const chunks = call.at.width / 8;
  int const first = task.tile * own_rows;
  int const key_tiles = (min(first + own_rows, sequence) + other_rows - 1) / other_rows;
  T const* const keys = call.qkv + call.at.key(task.b, task.kv_head);
  auto* const query_tile = reinterpret_cast<T*>(shared_memory());
  auto* const d_out_tile = query_tile + own_rows * D;
  auto* const stages = d_out_tile + own_rows * D;
  auto const begin_stage = [&](int tile) {
    T* const stage = stages + tile % 2 * stage_elements<D>;
    T const* const from = keys + tile * (other_rows * stride);
    int const there = sequence - tile * other_rows;
    begin_tile<D, other_rows, threads<D>, T>(stage, {from, stride, there, chunks});
    begin_tile<D, other_rows, threads<D>, T>(stage + other_rows * D,
                                             {from + call.at.to_values(), stride, there, chunks});
  };

  std::int64_t const query_offset = call.at.query(task.b, task.head) + first * stride;
  std::int64_t const out_offset = call.at.out(task.b, task.head) + first * out_stride;
  int const own_there = sequence - first;
  begin_tile<D, own_rows, threads<D>, T>(query_tile,
                                         {call.qkv + query_offset, stride, own_there, chunks});
  begin_tile<D, own_rows, threads<D>, T>(d_out_tile,
                                         {call.d_out + out_offset, out_stride, own_there, chunks});
  // The second stage is free until the first one is in work.
  T* const out_tile = stages + stage_elements<D>;
  static_assert(stage_elements<D> == own_rows * D);
  begin_tile<D, own_rows, threads<D>, T>(out_tile,
                                         {call.out + out_offset, out_stride, own_there, chunks});
  begin_stage(0);
  end_copies();
  await_copies<0>();
  __syncthreads();

  Own<T, D> queries;
  Own<T, D> d_outs;
  place_own<T, D>(queries, query_tile, at);
  place_own<T, D>(d_outs, d_out_tile, at);
  QueryRows<D> rows;
  row_products<T, D>(rows.delta, d_outs, out_tile, at);
  know_rows(rows, call, task, at);
  float const scale = call.at.scale * log2_of_e;
  Sums<D> sums;
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
    clear(sums[h]);
  }
#pragma unroll 1
  for (int tile = 0; tile < key_tiles; ++tile) {
    await_copies<0>();
    __syncthreads();
    if (tile + 1 < key_tiles) {
      begin_stage(tile + 1);
      end_copies();
    }
    T const* const stage = stages + tile % 2 * stage_elements<D>;
    int const ahead = first + at.warp * warp_rows<D> - tile * other_rows;
#pragma unroll 1
    for (int key = 0; key < other_rows && key < ahead + warp_rows<D>; key += 16) {
      Square<D> x;
      Square<D> y;
      two_products<T, D>(x, queries, stage, y, d_outs, stage + other_rows * D, key, at.lane);
      differentiate<D>(x, y, rows, scale, ahead - key, at);
      std::uint32_t a[halves<D>][4];
#pragma unroll
      for (int h = 0; h < halves<D>; ++h) {
        as_a<T>(a[h], x[h][0], x[h][1]);
      }
      add_product<T, D>(sums, a, stage, key, at.lane);
    }
  }
  write_sums<T, D>({call.d_qkv + query_offset, stride, own_there, chunks}, query_tile, sums,
                   call.at.scale, at);
}

/// x <- P, y <- dS, transposed, of 16 queries; `ahead`: of the first of them before the warp's first key. `known`:
/// their shifts, and other_rows later their deltas.
template <int D>
__device__ void differentiate_transposed(Square<D>& x, Square<D>& y, float const* known,
                                         float scale, int ahead, Lane const& at) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float const* const of_pair = known + 8 * n + at.pair;
    float const shift[2] = {of_pair[0], of_pair[1]};
    float const delta[2] = {of_pair[other_rows], of_pair[other_rows + 1]};
#pragma unroll
    for (int h = 0; h < halves<D>; ++h) {
      int const last = ahead - 16 * h + at.pair - at.group;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float const weight = fast_exp2(__fmaf_rn(x[h][n][i], scale, -shift[i % 2]));
        float const change = weight * (y[h][n][i] - delta[i % 2]);
        bool const hidden = 8 * (i / 2) - 8 * n - i % 2 > last;
        x[h][n][i] = hidden ? 0 : weight;
        y[h][n][i] = hidden ? 0 : change;
      }
    }
  }
}

/// A block has 128 keys and values of one head and takes the queries that see them 64 at a time, head after head of
/// the group. It works on the transposed matrices, whose products with queries and d_out need no way through shared
/// memory.
template <class T, int D>
__global__ __launch_bounds__(threads<D>,
                             blocks_of_sm<D>) void d_key_kernel(BackwardCall<T> const call) {
  auto const task = key_task(call.at, call.first_unit, call.units);
  auto const at = this_lane();
  auto const thread = static_cast<int>(threadIdx.x);
  auto const stride = call.at.qkv_stride;
  auto const out_stride = call.at.out_stride;
  int const sequence = call.at.sequence;
  int const chunks = call.at.width / 8;
  int const first = task.tile * own_rows;
  int const first_query_tile = first / other_rows;
  int const query_tiles = (sequence + other_rows - 1) / other_rows;
  auto* const key_tile = reinterpret_cast<T*>(shared_memory());
  auto* const value_tile = key_tile + own_rows * D;
  auto* const stages = value_tile + own_rows * D;
  auto* const known = reinterpret_cast<float*>(stages + 2 * stage_elements<D>);
  // Returns the statistic that this thread will put beside the tiles.
  auto const begin_stage = [&](int stage, int member, int tile) {
    int const position = tile * other_rows;
    int const there = sequence - position;
    T* const to = stages + stage * stage_elements<D>;
    begin_tile<D, other_rows, threads<D>, T>(
        to, {call.qkv + call.at.query(task.b, task.head + member) + position * stride, stride,
             there, chunks});
    begin_tile<D, other_rows, threads<D>, T>(
        to + other_rows * D,
        {call.d_out + call.at.out(task.b, task.head + member) + position * out_stride, out_stride,
         there, chunks});
    end_copies();
    int const row = thread % other_rows;
    if (thread < other_rows) {  // so that queries that do not exist get no weight
      return row < there
                 ? log2_of_e *
                       call.log_sum_exp[call.at.row(task.b, task.head + member) + position + row]
                 : INFINITY;
    }
    return thread < statistics && row < there
               ? call.delta[std::int64_t{task.local + member} * sequence + position + row]
               : 0.0F;
  };

  std::int64_t const key_offset = call.at.key(task.b, task.kv_head) + first * stride;
  std::int64_t const value_offset = key_offset + call.at.to_values();
  int const own_there = sequence - first;
  begin_tile<D, own_rows, threads<D>, T>(key_tile,
                                         {call.qkv + key_offset, stride, own_there, chunks});
  begin_tile<D, own_rows, threads<D>, T>(value_tile,
                                         {call.qkv + value_offset, stride, own_there, chunks});
  float coming = begin_stage(0, 0, first_query_tile);
  if (thread < statistics) {
    known[thread] = coming;
  }
  await_copies<0>();
  __syncthreads();

  Own<T, D> keys;
  Own<T, D> values;
  place_own<T, D>(keys, key_tile, at);
  place_own<T, D>(values, value_tile, at);
  float const scale = call.at.scale * log2_of_e;
  Sums<D> d_keys;
  Sums<D> d_values;
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
    clear(d_keys[h]);
    clear(d_values[h]);
  }
  int stage = 0;
  int member = 0;
  int tile = first_query_tile;
#pragma unroll 1
  while (member < call.at.group) {
    await_copies<0>();
    __syncthreads();
    int const ahead = tile * other_rows - first - at.warp * warp_rows<D>;
    if (++tile == query_tiles) {
      tile = first_query_tile;
      ++member;
    }
    if (member < call.at.group) {
      coming = begin_stage(1 - stage, member, tile);
    }
    T const* const queries = stages + stage * stage_elements<D>;
    T const* const d_outs = queries + other_rows * D;
    float const* const of_stage = known + stage * statistics;
#pragma unroll 1
    for (int query = max(0, -ahead); query < other_rows; query += 16) {
      Square<D> x;
      Square<D> y;
      two_products<T, D>(x, keys, queries, y, values, d_outs, query, at.lane);
      differentiate_transposed<D>(x, y, of_stage + query, scale, ahead + query, at);
      std::uint32_t weights[halves<D>][4];
      std::uint32_t changes[halves<D>][4];
#pragma unroll
      for (int h = 0; h < halves<D>; ++h) {
        as_a<T>(weights[h], x[h][0], x[h][1]);
        as_a<T>(changes[h], y[h][0], y[h][1]);
      }
      add_product<T, D>(d_values, weights, d_outs, query, at.lane);
      add_product<T, D>(d_keys, changes, queries, query, at.lane);
    }
    stage = 1 - stage;
    if (thread < statistics) {
      known[stage * statistics + thread] = coming;
    }
  }
  write_sums<T, D>({call.d_qkv + key_offset, stride, own_there, chunks}, key_tile, d_keys,
                   call.at.scale, at);
  write_sums<T, D>({call.d_qkv + value_offset, stride, own_there, chunks}, value_tile, d_values, 1,
                   at);
}

template <class T, int D>
void launch_backward(BackwardCall<T> const& call, CUstream_st* stream) {
  int const tiles = (call.at.sequence + own_rows - 1) / own_rows;
  std::int64_t const heads = std::int64_t{call.units} * call.at.group;
  launch(d_query_kernel<T, D>, Grid{attention_blocks(heads, tiles), threads<D>, tile_bytes<D>},
         stream, call, tiles);
  launch(d_key_kernel<T, D>,
         Grid{attention_blocks(call.units, tiles), threads<D>, tile_bytes<D> + statistics_bytes},
         stream, call);
}

}  // namespace

template <class T>
void backward_by_tiles(BackwardCall<T> const& call, CUstream_st* stream) {
  if (call.at.width <= 32) {
    launch_backward<T, 32>(call, stream);
  } else if (call.at.width <= 64) {
    launch_backward<T, 64>(call, stream);
  } else if (call.at.width <= 96) {
    launch_backward<T, 96>(call, stream);
  } else {
    launch_backward<T, 128>(call, stream);
  }
}

template void backward_by_tiles(BackwardCall<bfloat16> const&, CUstream_st*);
template void backward_by_tiles(BackwardCall<float16> const&, CUstream_st*);

}  // namespace offstage::kernels::cuda
