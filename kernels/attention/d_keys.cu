#include <cstddef>
#include <cstdint>

#include "kernels/attention/backward.cuh"
#include "kernels/attention/calls.cuh"
#include "kernels/attention/tiles.cuh"

namespace offstage::kernels::cuda {
namespace {

/// x <- P, y <- dS, transposed, of 16 queries, from scores and dP. `known`: the queries' shifts, and R later their deltas.
template <int D, int R>
__device__ void differentiate(Square<D>& x, Square<D>& y, float const* known, float scale,
                              Lane const& at) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float const* const of_pair = known + 8 * n + at.pair;
    float const shift[2] = {of_pair[0], of_pair[1]};
    float const delta[2] = {of_pair[R], of_pair[R + 1]};
#pragma unroll
    for (int h = 0; h < halves<D>; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[h][n][i] = fast_exp2(__fmaf_rn(x[h][n][i], scale, -shift[i % 2]));
        y[h][n][i] = x[h][n][i] * (y[h][n][i] - delta[i % 2]);
      }
    }
  }
}

/// Clears what belongs to queries before a row's key; `ahead`: of the first query before the warp's first key.
template <int D>
__device__ void hide(Square<D>& x, Square<D>& y, int ahead, Lane const& at) {
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
    int const last = ahead - 16 * h + at.pair - at.group;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        bool const hidden = 8 * (i / 2) - 8 * n - i % 2 > last;
        x[h][n][i] = hidden ? 0 : x[h][n][i];
        y[h][n][i] = hidden ? 0 : y[h][n][i];
      }
    }
  }
}

/// Tiles of the queries that see a block's keys, head after head of the group, and of their d_out, in two stages that
/// take turns; after them stand, for each stage, the queries' shifts (log_sum_exp in powers of two) and their deltas.
template <class T, int D, int R>
struct QueryStages {
  static constexpr int statistics = 2 * R;  // of a stage
  static constexpr std::size_t bytes = 2 * statistics * sizeof(float);

  T* memory;
  float* known;
  BackwardCall<T> const& call;
  BlockTask const& task;

  __device__ T const* stage(int i) const { return memory + i * stage_elements<D, R>; }
  __device__ float const* known_of(int i) const { return known + i * statistics; }

  /// Begins tile `tile` of the group's head `member`. Returns the statistic for this thread to put() when the stage's
  /// last ones are done with.
  __device__ float begin(int i, int member, int tile) const {
    int const head = task.head + member;
    int const position = tile * R;
    T* const to = memory + i * stage_elements<D, R>;
    auto const queries =
        rows_of(call.qkv, call.at.query(task.b, head), call.at.qkv_stride, position, call.at);
    begin_tile<D, R, threads<D>, T>(to, queries);
    begin_tile<D, R, threads<D>, T>(to + R * D, rows_of(call.d_out, call.at.out(task.b, head),
                                                        call.at.out_stride, position, call.at));
    end_copies();
    auto const thread = static_cast<int>(threadIdx.x);
    int const row = thread % R;
    if (thread >= statistics || row >= queries.there) {
      return 0;  // of queries that do not exist the tiles hold zeros, which add nothing
    }
    std::int64_t const local = task.local + member;
    return thread < R ? log2_of_e * call.log_sum_exp[call.at.row(task.b, head) + position + row]
                      : call.delta[local * call.at.sequence + position + row];
  }
  __device__ void put(int i, float statistic) const {
    if (threadIdx.x < statistics) {
      known[i * statistics + static_cast<int>(threadIdx.x)] = statistic;
    }
  }
};

template <class T, int D, int R>
constexpr std::size_t shared_bytes = tile_bytes<D, R> + QueryStages<T, D, R>::bytes;

/// A block has 128 keys and values of one head and takes the queries that see them R at a time. It works on the
/// transposed matrices, whose products with queries and d_out need no way through shared memory.
template <class T, int D, int R>
__global__ __launch_bounds__(threads<D>,
                             blocks_of_sm<D>) void d_key_kernel(BackwardCall<T> const call) {
  auto const task = key_task(call.at, call.first_unit, call.units);
  auto const at = this_lane();
  int const first = task.tile * own_rows;
  std::int64_t const key_head = call.at.key(task.b, task.kv_head);
  std::int64_t const value_head = key_head + call.at.to_values();
  auto* const key_tile = reinterpret_cast<T*>(shared_memory());
  auto* const value_tile = key_tile + own_rows * D;
  auto* const stages_memory = value_tile + own_rows * D;
  QueryStages<T, D, R> const stages{
      stages_memory, reinterpret_cast<float*>(stages_memory + 2 * stage_elements<D, R>), call,
      task};
  begin_tile<D, own_rows, threads<D>, T>(
      key_tile, rows_of(call.qkv, key_head, call.at.qkv_stride, first, call.at));
  begin_tile<D, own_rows, threads<D>, T>(
      value_tile, rows_of(call.qkv, value_head, call.at.qkv_stride, first, call.at));
  int tile = first / R;
  float coming = stages.begin(0, 0, tile);
  stages.put(0, coming);
  await_copies<0>();
  __syncthreads();

  Own<T, D> keys;
  Own<T, D> values;
  take_own<T, D>(keys, key_tile, at);
  take_own<T, D>(values, value_tile, at);
  float const scale = call.at.scale * log2_of_e;
  Sums<D> d_keys;
  Sums<D> d_values;
  clear_sums<D>(d_keys);
  clear_sums<D>(d_values);
  int stage = 0;
  int member = 0;
#pragma unroll 1
  while (member < call.at.group) {
    await_copies<0>();
    __syncthreads();
    int const ahead = tile * R - first - at.warp * warp_rows<D>;
    if (++tile * R >= call.at.sequence) {
      tile = first / R;
      ++member;
    }
    if (member < call.at.group) {
      coming = stages.begin(1 - stage, member, tile);
    }
    T const* const queries = stages.stage(stage);
    T const* const d_outs = queries + R * D;
#pragma unroll 1
    for (int query = max(0, -ahead); query < R; query += 16) {
      Square<D> x;
      Square<D> y;
      two_products<T, D>(x, keys, queries, y, values, d_outs, query, at.lane);
      differentiate<D, R>(x, y, stages.known_of(stage) + query, scale, at);
      if (ahead + query < warp_rows<D> - 1) {
        hide<D>(x, y, ahead + query, at);
      }
      add_square<T, D>(d_values, x, d_outs, query, at.lane);
      add_square<T, D>(d_keys, y, queries, query, at.lane);
    }
    stage = 1 - stage;
    stages.put(stage, coming);
  }
  write_sums<T, D>(rows_of(call.d_qkv, key_head, call.at.qkv_stride, first, call.at), key_tile,
                   d_keys, call.at.scale, at);
  write_sums<T, D>(rows_of(call.d_qkv, value_head, call.at.qkv_stride, first, call.at), value_tile,
                   d_values, 1, at);
}

}  // namespace

template <class T>
void d_keys_by_tiles(BackwardCall<T> const& call, std::size_t most_shared, CUstream_st* stream) {
  int const tiles = (call.at.sequence + own_rows - 1) / own_rows;
  with_width(call.at.width, [&](auto width) {
    constexpr int D = decltype(width)::value;
    with_rows<shared_bytes<T, D, other_rows>>(most_shared, [&](auto rows) {
      constexpr int R = decltype(rows)::value;
      static_assert(R == other_rows || shared_bytes<T, D, R> <= offstage::cuda::least_shared_bytes);
      launch(d_key_kernel<T, D, R>,
             Grid{attention_blocks(call.units, tiles), threads<D>, shared_bytes<T, D, R>}, stream,
             call);
    });
  });
}

template void d_keys_by_tiles(BackwardCall<bfloat16> const&, std::size_t, CUstream_st*);
template void d_keys_by_tiles(BackwardCall<float16> const&, std::size_t, CUstream_st*);

}  // namespace offstage::kernels::cuda
