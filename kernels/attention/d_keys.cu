#include <cstddef>
#include <cstdint>

#include "base/instantiate.hpp"
#include "kernels/attention/backward.cuh"
#include "kernels/attention/calls.cuh"
#include "kernels/attention/tiles.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace offstage::kernels::cuda {
namespace {

/// x <- P, y <- dS, transposed, of 16 queries, from scores and dP. `known`: the queries'
/// log_sum_exp, and R later their deltas.
template <int D, int R>
__device__ void differentiate(Square<D>& x, Square<D>& y, float const* known, float scale,
                              Lane const& at) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float const* const of_pair = known + 8 * n + at.pair;
    float const shift[2] = {log2_of_e * of_pair[0], log2_of_e * of_pair[1]};
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

/// Clears what belongs to queries before a row's key; `ahead`: of the first query before the warp's
/// first key.
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

/// Clears what belongs to queries, of 16 from `query` on, behind the last that sees a row's key;
/// `key`: the warp's first.
template <int D>
__device__ void hide_behind(Square<D>& x, Square<D>& y, AttentionHeads const& heads, int b, int key,
                            int query, Lane const& at) {
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
    int const row = key + 16 * h + at.group;
    int const ends[2] = {heads.end_of_queries(b, row) - query,
                         heads.end_of_queries(b, row + 8) - query};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        bool const hidden = 8 * n + at.pair + i % 2 >= ends[i / 2];
        x[h][n][i] = hidden ? 0 : x[h][n][i];
        y[h][n][i] = hidden ? 0 : y[h][n][i];
      }
    }
  }
}

/// Tiles of the queries that see a block's keys, head after head of the group, and of their d_out,
/// in two stages that take turns; after them stand, for each stage, the queries' log_sum_exp and
/// their deltas, which are copied as the tiles are: a register that waits for one beside the
/// products would be spilled, which waits at once.
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

  /// Begins tile `tile` of the group's head `member`.
  __device__ void begin(int i, int member, int tile) const {
    int const head = task.head + member;
    int const position = tile * R;
    T* const to = memory + i * stage_elements<D, R>;
    auto const queries =
        rows_of(call.qkv, call.at.query(task.b, head), call.at.qkv_stride, position, call.at);
    begin_tile<D, R, threads<D>, T>(to, queries);
    begin_tile<D, R, threads<D>, T>(to + R * D, rows_of(call.d_out, call.at.out(task.b, head),
                                                        call.at.out_stride, position, call.at));
    auto const thread = static_cast<int>(threadIdx.x);
    if (thread < statistics) {
      int const row = thread % R;
      bool const there = row < queries.there;  // else the tiles hold zeros, which add nothing
      std::int64_t const local = task.local + member;
      float const* const first = thread < R ? call.log_sum_exp + call.at.row(task.b, head)
                                            : call.delta + local * call.at.sequence;
      copy_word_async(known + i * statistics + thread, first + position + (there ? row : 0), there);
    }
    end_copies();
  }
};

template <class T, int D, int R>
constexpr std::size_t shared_bytes = tile_bytes<D, R> + QueryStages<T, D, R>::bytes;

/// A warp leaves its rows of sums, as they are, in scratch memory, where rows of `width` numbers
/// follow each other.
template <int D>
__device__ void leave_sums(float* first_row, Sums<D> const& sums, int there, int width,
                           Lane const& at) {
#pragma unroll
  for (int h = 0; h < halves<D>; ++h) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int const row = at.warp * warp_rows<D> + 16 * h + 8 * r + at.group;
      float* const to = first_row + std::int64_t{row} * width + at.pair;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        if (row < there && 8 * n < width) {
          *reinterpret_cast<float2*>(to + 8 * n) =
              make_float2(sums[h][n][2 * r], sums[h][n][2 * r + 1]);
        }
      }
    }
  }
}

/// A block has 128 keys and values of one head and takes the queries of its part of the group that
/// see them, R at a time. It works on the transposed matrices, whose products with queries and
/// d_out need no way through shared memory. `whole`: the part is the group.
template <class T, int D, int R, bool whole>
__global__ __launch_bounds__(threads<D>,
                             blocks_of_sm<D>) void d_key_kernel(BackwardCall<T> const call) {
  auto const task = key_task(call.at, call.first_unit, call.units, whole ? 1 : call.parts);
  int const members = whole ? call.at.group : call.at.group / call.parts;
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
  int const end = call.at.end_of_queries(task.b, first + own_rows - 1);
  // Ends of the queries that see all of the warp's keys, and of those that see some.
  int const own_key = first + at.warp * warp_rows<D>;
  int const all_see = call.at.end_of_queries(task.b, own_key);
  int const some_see = call.at.end_of_queries(task.b, own_key + warp_rows<D> - 1);
  int tile = first / R;
  stages.begin(0, 0, tile);
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
  while (member < members) {
    await_copies<0>();
    __syncthreads();
    int const begin = tile * R;
    int const ahead = begin - own_key;
    if (++tile * R >= end) {
      tile = first / R;
      ++member;
    }
    if (member < members) {
      stages.begin(1 - stage, member, tile);
    }
    T const* const queries = stages.stage(stage);
    T const* const d_outs = queries + R * D;
#pragma unroll 1
    for (int query = max(0, -ahead); query < R && begin + query < some_see; query += 16) {
      Square<D> x;
      Square<D> y;
      two_products<T, D>(x, keys, queries, y, values, d_outs, query, at.lane);
      differentiate<D, R>(x, y, stages.known_of(stage) + query, scale, at);
      if (ahead + query < warp_rows<D> - 1) {
        hide<D>(x, y, ahead + query, at);
      }
      if (begin + query + 15 >= all_see) {
        hide_behind<D>(x, y, call.at, task.b, own_key, begin + query, at);
      }
      add_square<T, D>(d_values, x, d_outs, query, at.lane);
      add_square<T, D>(d_keys, y, queries, query, at.lane);
    }
    stage = 1 - stage;
  }
  if constexpr (whole) {
    write_sums<T, D>(rows_of(call.d_qkv, key_head, call.at.qkv_stride, first, call.at), key_tile,
                     d_keys, call.at.scale, at);
    write_sums<T, D>(rows_of(call.d_qkv, value_head, call.at.qkv_stride, first, call.at),
                     value_tile, d_values, 1, at);
  } else {
    std::int64_t const of_tensor = std::int64_t{call.at.sequence} * call.at.width;
    float* const sums =
        call.sums + task.local / members * 2 * of_tensor + std::int64_t{first} * call.at.width;
    int const there = call.at.sequence - first;
    leave_sums<D>(sums, d_keys, there, call.at.width, at);
    leave_sums<D>(sums + of_tensor, d_values, there, call.at.width, at);
  }
}

/// dK and dV of all units: what the parts of each left, added in their order. A thread has eight
/// columns.
template <class T>
__global__ __launch_bounds__(block_size) void add_parts_kernel(BackwardCall<T> const call) {
  AttentionHeads const& at = call.at;
  std::int64_t const chunks = std::int64_t{at.sequence} * (at.width / 8);  // of a tensor
  std::int64_t const stride = std::int64_t{gridDim.x} * block_size;
  for (std::int64_t i = std::int64_t{blockIdx.x} * block_size + threadIdx.x;
       i < call.units * 2 * chunks; i += stride) {
    auto const tensor = static_cast<int>(i / chunks);  // a unit's keys, then its values
    std::int64_t const chunk = i % chunks;
    float const* const parts =
        call.sums + (std::int64_t{tensor / 2} * call.parts * 2 + tensor % 2) * chunks * 8;
    float sum[8] = {};
    for (int part = 0; part < call.parts; ++part) {
      auto const* const from =
          reinterpret_cast<float4 const*>(parts + part * 2 * chunks * 8 + chunk * 8);
      float4 const low = from[0];
      float4 const high = from[1];
      float const own[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        sum[c] += own[c];
      }
    }
    float const factor = tensor % 2 == 0 ? at.scale : 1;
    int const unit = call.first_unit + tensor / 2;
    std::int64_t const head =
        at.key(unit / at.kv_heads, unit % at.kv_heads) + (tensor % 2 == 0 ? 0 : at.to_values());
    T* const to =
        call.d_qkv + head + chunk / (at.width / 8) * at.qkv_stride + chunk % (at.width / 8) * 8;
    // The compiler stores an assigned uint4 as four words here.
    __stwb(reinterpret_cast<uint4*>(to), make_uint4(pack<T>(factor * sum[0], factor * sum[1]),
                                                    pack<T>(factor * sum[2], factor * sum[3]),
                                                    pack<T>(factor * sum[4], factor * sum[5]),
                                                    pack<T>(factor * sum[6], factor * sum[7])));
  }
}

}  // namespace

template <class T>
void d_keys_by_tiles(BackwardCall<T> const& call, std::size_t most_shared, CUstream_st* stream) {
  int const tiles = (call.at.sequence + own_rows - 1) / own_rows;
  bool const whole = call.parts == 1;
  with_width(call.at.width, [&](auto width) {
    constexpr int D = decltype(width)::value;
    with_rows<shared_bytes<T, D, other_rows>>(most_shared, [&](auto rows) {
      constexpr int R = decltype(rows)::value;
      static_assert(R == other_rows || shared_bytes<T, D, R> <= offstage::cuda::least_shared_bytes);
      launch(whole ? d_key_kernel<T, D, R, true> : d_key_kernel<T, D, R, false>,
             Grid{attention_blocks(std::int64_t{call.units} * call.parts, tiles), threads<D>,
                  shared_bytes<T, D, R>},
             stream, call);
    });
  });
  if (!whole) {
    auto const chunks = std::size_t{2} * static_cast<std::size_t>(call.units) *
                        static_cast<std::size_t>(call.at.sequence) *
                        static_cast<std::size_t>(call.at.width / 8);
    launch(add_parts_kernel<T>, Grid{blocks_for(chunks, block_size), block_size}, stream, call);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_HALF_TYPES, d_keys_by_tiles)

}  // namespace offstage::kernels::cuda
