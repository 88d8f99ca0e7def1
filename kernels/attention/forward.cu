#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/instantiate.hpp"
#include "kernels/attention/calls.cuh"
#include "kernels/attention/tiles.cuh"
#include "platform/cuda/gpus.hpp"

namespace offstage::kernels::cuda {
namespace {

constexpr int threads = 128;
constexpr int halves =
    2;  // of 16 rows each in a warp, which share what it reads of keys and values
constexpr int warp_rows = 16 * halves;
static_assert(own_rows == threads / 32 * warp_rows);

template <class T, int D>
using Stages = KeyStages<T, D, threads>;
/// The tile of queries, then the stages.
template <int D>
constexpr std::size_t shared_bytes = 2 * (own_rows * D + 2 * Stages<bfloat16, D>::elements);
static_assert(shared_bytes<largest_tile_width> <= offstage::cuda::least_shared_bytes);

// Of wider heads the sums need their registers.
template <int D>
constexpr bool queries_in_registers = D <= 64;
template <class T, int D>
using Queries = Operand<T, D, queries_in_registers<D>>[halves];
using Scores = float[other_rows / 8][4];  // of 16 rows

/// Running softmax of rows group and group + 8, whose columns four lanes share.
struct Softmax {
  float shift[2];  ///< largest score so far, in powers of two; the same in all four
  float total[2];  ///< of each lane's own columns
};

template <class T, int D>
__device__ void score(Scores (&scores)[halves], Queries<T, D> const& queries, T const* keys,
                      int lane) {
#pragma unroll
  for (int h = 0; h < halves; ++h) {
    clear(scores[h]);
  }
  constexpr int unrolled = queries_in_registers<D> ? D / 16 : 4;
#pragma unroll unrolled
  for (int step = 0; step < D / 16; ++step) {
    std::uint32_t a[halves][4];
#pragma unroll
    for (int h = 0; h < halves; ++h) {
      queries[h].get(a[h], step);
    }
#pragma unroll
    for (int n = 0; n < other_rows / 16; ++n) {
      std::uint32_t b[4];
      load_b_by_columns<D>(b, keys, 16 * n, step, lane);
#pragma unroll
      for (int h = 0; h < halves; ++h) {
        multiply_add_16<T>(scores[h][2 * n], scores[h][2 * n + 1], a[h], b);
      }
    }
  }
}

/// Hides keys after each row's own position; `ahead`: of the first row before the tile's first key.
__device__ inline void mask(Scores& scores, int ahead, Lane const& at) {
  int const last = ahead + at.group - at.pair;
#pragma unroll
  for (int n = 0; n < other_rows / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (8 * n + i % 2 - i / 2 * 8 > last) {
        scores[n][i] = -INFINITY;
      }
    }
  }
}

/// Hides keys before the first that rows group and group + 8 see: `first_keys`, counted from the
/// tile's first key.
__device__ inline void mask_before(Scores& scores, int const (&first_keys)[2], Lane const& at) {
#pragma unroll
  for (int n = 0; n < other_rows / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (8 * n + at.pair + i % 2 < first_keys[i / 2]) {
        scores[n][i] = -INFINITY;
      }
    }
  }
}

/// Makes weights of scores; the sums so far are scaled to the new largest score.
template <int D>
__device__ void soften(Softmax& state, Scores& scores, float (&sums)[D / 8][4], float scale) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float largest = -INFINITY;
#pragma unroll
    for (int n = 0; n < other_rows / 8; ++n) {
      largest = fmaxf(largest, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
    }
    float const highest = fmaxf(state.shift[r], largest_of_quad(largest) * scale);
    // A row that has seen no key yet has weights of zero.
    float const shift = highest > -INFINITY ? highest : 0;
    float const factor = fast_exp2(state.shift[r] - shift);
    state.shift[r] = highest;
    float total = state.total[r] * factor;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      sums[n][2 * r] *= factor;
      sums[n][2 * r + 1] *= factor;
    }
#pragma unroll
    for (int n = 0; n < other_rows / 8; ++n) {
      scores[n][2 * r] = fast_exp2(__fmaf_rn(scores[n][2 * r], scale, -shift));
      scores[n][2 * r + 1] = fast_exp2(__fmaf_rn(scores[n][2 * r + 1], scale, -shift));
      total += scores[n][2 * r] + scores[n][2 * r + 1];
    }
    state.total[r] = total;
  }
}

template <class T, int D>
__device__ void weigh(float (&sums)[halves][D / 8][4], Scores const (&weights)[halves],
                      T const* values, int lane) {
#pragma unroll
  for (int n = 0; n < other_rows / 16; ++n) {
    std::uint32_t a[halves][4];
#pragma unroll
    for (int h = 0; h < halves; ++h) {
      as_a<T>(a[h], weights[h][2 * n], weights[h][2 * n + 1]);
    }
    add_product<T, D>(sums, a, values, 16 * n, lane);
  }
}

/// Of a warp: divides by the totals and writes its rows, by way of its part of the tile of queries.
template <class T, int D>
__device__ void finish(ForwardCall<T> const& call, BlockTask const& task, T* tile,
                       Softmax (&state)[halves], float const (&sums)[halves][D / 8][4],
                       Lane const& at) {
  int const first = task.tile * own_rows;
  int const row = at.warp * warp_rows;
  __syncwarp();
#pragma unroll
  for (int h = 0; h < halves; ++h) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float const total = sum_of_quad(state[h].total[r]);
      factor[r] = 1 / total;
      int const position = first + row + 16 * h + 8 * r + at.group;
      if (at.pair == 0 && position < call.at.sequence) {
        call.log_sum_exp[call.at.row(task.b, task.head) + position] =
            state[h].shift[r] * ln_of_2 + logf(total);
      }
    }
    put_rows<T, D>(tile, row + 16 * h, sums[h], factor[0], factor[1], at);
  }
  __syncwarp();
  store_rows<D, warp_rows>(
      rows_of(call.out, call.at.out(task.b, task.head), call.at.out_stride, first, call.at), tile,
      row, at.lane);
}

/// A block has 128 queries of one head and takes their keys and values 64 at a time. A warp has 32
/// queries.
template <class T, int D>
__global__ __launch_bounds__(threads, 2) void forward_kernel(ForwardCall<T> const call, int tiles) {
  auto const task = query_task(call.at, 0, call.units, tiles);
  auto const at = this_lane();
  int const first = task.tile * own_rows;
  int const row = at.warp * warp_rows;
  auto* const query_tile = reinterpret_cast<T*>(shared_memory());
  Stages<T, D> const stages{query_tile + own_rows * D, call.qkv + call.at.key(task.b, task.kv_head),
                            call.at};
  begin_tile<D, own_rows, threads, T>(
      query_tile,
      rows_of(call.qkv, call.at.query(task.b, task.head), call.at.qkv_stride, first, call.at));
  int const first_tile = call.at.first_key(task.b, first) / other_rows;
  stages.begin(first_tile);

  Queries<T, D> queries;
  Softmax state[halves];
  float sums[halves][D / 8][4];
  stages.await();
#pragma unroll
  for (int h = 0; h < halves; ++h) {
    queries[h].tile = query_tile;
    queries[h].row = row + 16 * h;
    queries[h].lane = at.lane;
    queries[h].take();
    state[h] = {{-INFINITY, -INFINITY}, {0, 0}};
    clear(sums[h]);
  }
  float const scale = call.at.scale * log2_of_e;
  int const key_tiles = stages.count(first);
  // First keys that some of the warp's queries see, and that all see.
  int const first_seen = call.at.first_key(task.b, first + row);
  int const all_seen = call.at.first_key(task.b, first + row + warp_rows - 1);
#pragma unroll 1
  for (int tile = first_tile; tile < key_tiles; ++tile) {
    stages.await();
    if (tile + 1 < key_tiles) {
      stages.begin(tile + 1);
    }
    T const* const stage = stages.stage(tile);
    int const begin = tile * other_rows;
    int const ahead = first + row - begin;
    // Else all keys of the tile are later than the warp's queries, or before all that they see.
    if (ahead + warp_rows > 0 && begin + other_rows > first_seen) {
      Scores scores[halves];
      score<T, D>(scores, queries, stage, at.lane);
#pragma unroll
      for (int h = 0; h < halves; ++h) {
        if (ahead + 16 * h < other_rows - 1) {
          mask(scores[h], ahead + 16 * h, at);
        }
        if (begin < all_seen) {
          int const query = first + row + 16 * h + at.group;
          mask_before(scores[h],
                      {call.at.first_key(task.b, query) - begin,
                       call.at.first_key(task.b, query + 8) - begin},
                      at);
        }
        soften<D>(state[h], scores[h], sums[h], scale);
      }
      weigh<T, D>(sums, scores, stage + other_rows * D, at.lane);
    }
  }
  finish<T, D>(call, task, query_tile, state, sums, at);
}

template <class T, int D>
void launch_forward(ForwardCall<T> const& call, CUstream_st* stream) {
  int const tiles = (call.at.sequence + own_rows - 1) / own_rows;
  std::int64_t const heads = std::int64_t{call.units} * call.at.group;
  launch(forward_kernel<T, D>, Grid{attention_blocks(heads, tiles), threads, shared_bytes<D>},
         stream, call, tiles);
}

}  // namespace

template <class T>
void forward_by_tiles(ForwardCall<T> const& call, CUstream_st* stream) {
  with_width(call.at.width, [&](auto width) { launch_forward<T, width>(call, stream); });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_HALF_TYPES, forward_by_tiles)

}  // namespace offstage::kernels::cuda
