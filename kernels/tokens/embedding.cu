#include "kernels/tokens/embedding.hpp"

#include <algorithm>

#include "base/instantiate.hpp"
#include "kernels/cuda/packs.cuh"
#include "kernels/pointwise_checks.hpp"
#include "kernels/tokens/sort_tokens.hpp"

namespace offstage::kernels::cuda {
namespace {

template <class T, int V>
__global__ __launch_bounds__(block_size) void embedding_forward_kernel(
    std::int32_t const* __restrict__ tokens, T const* __restrict__ table,
    T const* __restrict__ positions, std::int32_t const* __restrict__ position_of,
    T* __restrict__ out, std::int64_t width, std::int64_t sequence) {
  std::int64_t const column = pack_of_row() * V;
  if (column >= width) {
    return;
  }
  std::int64_t const row = blockIdx.x;
  auto value = read_pack<V>(table + tokens[row] * width + column);
  if (positions != nullptr) {
    float sum[V], position[V];
    widen(sum, value);
    std::int64_t const at = position_of != nullptr ? position_of[row] : row % sequence;
    load_pack(position, positions + at * width + column);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      sum[v] += position[v];
    }
    value = round_pack<T>(sum);
  }
  write_pack(out + row * width + column, value);
}

constexpr int ranked_rows = 128;  // by a block, a thread each
constexpr int tile_packs = 256;
constexpr int tile_tokens = 4 * tile_packs;

/// sorted = the tokens in order, order = their rows, those of one token in order. A thread counts
/// what comes before its row: the square of the rows, but a GPU counts some 10^13 per second, and
/// no memory is needed. For up to most_ranked_rows.
__global__ __launch_bounds__(ranked_rows) void rank_kernel(std::int32_t const* __restrict__ tokens,
                                                           std::int32_t* __restrict__ sorted,
                                                           std::int32_t* __restrict__ order,
                                                           int rows) {
  __shared__ Pack<std::int32_t, 4> tile[tile_packs];
  int const first = static_cast<int>(blockIdx.x) * ranked_rows;
  int const row = first + static_cast<int>(threadIdx.x);
  std::int32_t const token = row < rows ? tokens[row] : 0;
  int before = 0;
  for (int begin = 0; begin < rows; begin += tile_tokens) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < tile_tokens; i += ranked_rows) {
      tile[i / 4].at[i % 4] = begin + i < rows ? tokens[begin + i] : INT_MAX;
    }
    __syncthreads();
    // An equal token counts if its row is earlier: in most tiles all are, or none.
    bool const all_earlier = begin + tile_tokens <= first;
    bool const mixed = !all_earlier && begin < first + ranked_rows;
    int const earlier = mixed ? row - begin : 0;
    std::int32_t const limit = all_earlier ? token : token - 1;
#pragma unroll 8
    for (int i = 0; i < tile_packs; ++i) {
      Pack<std::int32_t, 4> const four = tile[i];
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        before += four.at[v] <= limit ? 1 : 0;
      }
    }
    for (int i = 0; i < min(earlier, tile_tokens); ++i) {
      before += tile[i / 4].at[i % 4] == token ? 1 : 0;
    }
  }
  if (row < rows) {
    sorted[before] = token;
    order[before] = row;
  }
}

constexpr unsigned lanes = 4;         // a strip's rows go to them in turn
constexpr unsigned strip_packs = 32;  // columns of a block: a warp's packs
constexpr unsigned adding_threads = lanes * strip_packs;

/// Where the run of equal tokens ends that begins at `begin`: every thread probes a place, then the
/// stretch between the last that is of the run and the first that is not. Of every thread of the
/// block.
__device__ inline int end_of_run(std::int32_t const* sorted, int begin, int rows) {
  __shared__ int of_run[lanes];
  int low = begin + 1, high = rows;  // before `low` all is of the run, from `high` on nothing
  for (int step = 1; low < high; step = (high - low + static_cast<int>(adding_threads) - 1) /
                                        static_cast<int>(adding_threads)) {
    // Most runs are short: the first probes are neighbours.
    std::int64_t const at = low + std::int64_t{threadIdx.x} * step;
    unsigned const found =
        __ballot_sync(whole_warp, at < high && sorted[at] == sorted[begin] ? 1 : 0);
    if (threadIdx.x % warp_threads == 0) {
      of_run[threadIdx.x / warp_threads] = __popc(found);
    }
    __syncthreads();
    int probes = 0;
#pragma unroll
    for (unsigned warp = 0; warp < lanes; ++warp) {
      probes += of_run[warp];
    }
    __syncthreads();
    if (probes < static_cast<int>(adding_threads)) {
      high = min(high, low + probes * step);
    }
    low = probes == 0 ? low : low + (probes - 1) * step + 1;
  }
  return high;
}

/// What a lane adds of `count` rows, row_of(i) the i-th.
template <int V, class T, class RowOf>
__device__ void sum_lane(float (&sum)[V], T const* source, std::int64_t width, int count,
                         RowOf const& row_of) {
  auto const lane = static_cast<int>(threadIdx.x / strip_packs);
  constexpr auto stride = static_cast<int>(lanes);
  add_packs<8>(sum, 0, (count - lane + stride - 1) / stride,
               [&](int i) { return source + row_of(lane + i * stride) * width; });
}

/// target += what the lanes have, in their order; of every thread of the block.
template <int V, class T>
__device__ void add_lanes(float const (&sum)[V], T* target, bool in_row) {
  __shared__ float sums[lanes][V][strip_packs];
  unsigned const lane = threadIdx.x / strip_packs, pack_of_strip = threadIdx.x % strip_packs;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    sums[lane][v][pack_of_strip] = sum[v];
  }
  __syncthreads();
  if (lane == 0 && in_row) {
    float total[V];
    load_pack(total, target);
#pragma unroll
    for (unsigned other = 0; other < lanes; ++other) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        total[v] += sums[other][v][pack_of_strip];
      }
    }
    store_pack(target, total);
  }
}

/// One block per strip of columns adds all rows of a run of equal tokens, or positions; the others
/// end at once.
template <class T, int V>
__global__ __launch_bounds__(adding_threads) void add_tokens_kernel(
    std::int32_t const* __restrict__ sorted, std::int32_t const* __restrict__ order,
    T const* __restrict__ d_out, T* __restrict__ d_table, int rows, std::int64_t width) {
  auto const begin = static_cast<int>(blockIdx.x);
  std::int32_t const token = sorted[begin];
  if (begin > 0 && sorted[begin - 1] == token) {
    return;
  }
  int const end = end_of_run(sorted, begin, rows);
  std::int64_t const column =
      (std::int64_t{blockIdx.y} * strip_packs + threadIdx.x % strip_packs) * V;
  float sum[V] = {};
  if (column < width) {
    sum_lane(sum, d_out + column, width, end - begin,
             [&](int i) { return std::int64_t{order[begin + i]}; });
  }
  add_lanes(sum, d_table + token * width + column, column < width);
}

/// Likewise the rows of position blockIdx.x.
template <class T, int V>
__global__ __launch_bounds__(adding_threads) void add_positions_kernel(T const* __restrict__ d_out,
                                                                       T* __restrict__ d_positions,
                                                                       int rows, std::int64_t width,
                                                                       int sequence) {
  auto const position = static_cast<int>(blockIdx.x);
  std::int64_t const column =
      (std::int64_t{blockIdx.y} * strip_packs + threadIdx.x % strip_packs) * V;
  float sum[V] = {};
  if (column < width && position < rows) {
    sum_lane(sum, d_out + column, width, (rows - 1 - position) / sequence + 1,
             [&](int i) { return position + std::int64_t{i} * sequence; });
  }
  add_lanes(sum, d_positions + position * width + column, column < width);
}

}  // namespace

template <class T>
void embedding_forward(EmbeddingForward<T> const& a, CUstream_st* stream) {
  check_views(a);
  if (a.rows == 0) {
    return;
  }
  bool const aligned = are_wide(a.width, a.table.data(), a.positions.data(), a.out.data());
  with_packs<T>(aligned, [&](auto pack) {
    launch(embedding_forward_kernel<T, pack.value>, pack_grid(a.rows, a.width / pack.value), stream,
           a.tokens.data(), a.table.data(), a.positions.data(),
           a.position_of.empty() ? nullptr : a.position_of.data(), a.out.data(), a.width,
           a.sequence);
  });
}

namespace {

/// Bytes of `sorted`, and of `order`: memory behind them is as aligned as they are.
std::size_t bytes_of_rows(std::int64_t rows) {
  constexpr Bytes alignment = 256;
  return static_cast<std::size_t>(
      round_up(rows * static_cast<Bytes>(sizeof(std::int32_t)), alignment));
}

/// sorted, order: of the tokens, in scratch memory.
void order_tokens(TokenSort const& sort, std::span<std::byte> scratch, CUstream_st* stream) {
  auto const rows = static_cast<std::int64_t>(sort.tokens.size());
  if (rows > most_ranked_rows) {
    sort_tokens(sort, scratch, stream);
  } else {
    launch(rank_kernel,
           {static_cast<unsigned>((rows + ranked_rows - 1) / ranked_rows), unsigned{ranked_rows}},
           stream, sort.tokens.data(), sort.sorted.data(), sort.order.data(), rows);
  }
}

}  // namespace

std::size_t embedding_backward_scratch(std::int64_t rows, std::int64_t vocab) {
  return 2 * bytes_of_rows(rows) + (rows > most_ranked_rows ? sort_tokens_scratch(rows, vocab) : 0);
}

template <class T>
void embedding_backward(EmbeddingBackward<T> const& a, std::span<std::byte> scratch,
                        CUstream_st* stream) {
  check_views(a);
  require(a.rows <= INT_MAX - tile_tokens && a.sequence <= INT_MAX,
          "embedding_backward: the rows are too many");
  // Positions that are given are added up as tokens are, after them and in the same memory.
  std::int64_t const ids = a.position_of.empty() ? a.vocab : std::max(a.vocab, a.sequence);
  require(scratch.size() >= embedding_backward_scratch(a.rows, ids),
          "embedding_backward: the scratch memory is too small");
  if (a.rows == 0) {
    return;
  }
  auto const bytes = bytes_of_rows(a.rows);
  auto* const sorted = reinterpret_cast<std::int32_t*>(scratch.data());
  auto* const order = reinterpret_cast<std::int32_t*>(scratch.data() + bytes);
  auto const count = static_cast<std::size_t>(a.rows);
  bool const aligned = are_wide(a.width, a.d_out.data(), a.d_table.data(), a.d_positions.data());
  with_packs<T>(aligned, [&](auto pack) {
    std::int64_t const strip = strip_packs * pack.value;
    auto const strips = static_cast<unsigned>((a.width + strip - 1) / strip);
    auto const add = [&](std::span<std::int32_t const> id_of, std::span<T> target) {
      order_tokens({id_of, ids, {sorted, count}, {order, count}}, scratch.subspan(2 * bytes),
                   stream);
      launch(add_tokens_kernel<T, pack.value>, {dim3{row_grid(a.rows), strips}, adding_threads},
             stream, sorted, order, a.d_out.data(), target.data(), a.rows, a.width);
    };
    add(a.tokens, a.d_table);
    if (!a.d_positions.empty() && !a.position_of.empty()) {
      add(a.position_of, a.d_positions);
    } else if (!a.d_positions.empty()) {
      launch(add_positions_kernel<T, pack.value>,
             {dim3{static_cast<unsigned>(a.sequence), strips}, adding_threads}, stream,
             a.d_out.data(), a.d_positions.data(), a.rows, a.width, a.sequence);
    }
  });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, embedding_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, embedding_backward)

}  // namespace offstage::kernels::cuda
