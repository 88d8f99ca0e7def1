#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.hpp"
#include "kernels/cuda/rows.cuh"

/// Sums over rows: fixed blocks of rows have one partial sum per column in scratch memory, and a
/// second kernel adds these in order.
namespace offstage::kernels::cuda {
namespace {

struct RowBlocks {
  std::int64_t blocks, rows_per_block;
  [[nodiscard]] std::size_t scratch_bytes(std::int64_t columns) const {
    return static_cast<std::size_t>(blocks * columns) * sizeof(float);
  }
};

/// Enough blocks for a large GPU, few enough that their sums take less than 32 MiB or so. Blocks of
/// narrow rows have a warp or two, so that there are more of them.
inline RowBlocks row_blocks(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t least_rows = 4, most_sums = 8 << 20, narrow = 512;
  std::int64_t const most_blocks = columns <= narrow ? 4096 : 512;
  std::int64_t const limit = std::clamp<std::int64_t>(most_sums / columns, 1, most_blocks);
  std::int64_t const wanted = std::clamp<std::int64_t>(rows / least_rows, 1, limit);
  std::int64_t const rows_per_block = std::max<std::int64_t>(1, (rows + wanted - 1) / wanted);
  return {std::max<std::int64_t>(1, (rows + rows_per_block - 1) / rows_per_block), rows_per_block};
}

/// Where the sums go. Errors: PreconditionError if they do not fit.
inline float* partial_sums(std::span<std::byte> scratch, RowBlocks const& blocks,
                           std::int64_t columns) {
  require(scratch.size() >= blocks.scratch_bytes(columns),
          "sums over rows: the scratch memory is too small");
  return reinterpret_cast<float*>(scratch.data());
}

/// A block's sums of `outputs` times `width` columns, each kept by the one thread whose packs have
/// the column: in registers if they are few, else in shared memory, where neighbours' sums are
/// neighbours, and go to `partial` at the end; without registers for a row (V = 1) they are there
/// all the time.
template <class Shape, int outputs>
class ColumnSums {
  static constexpr int V = Shape::pack, held = Shape::held;
  static constexpr bool in_partial = held == 0;
  static constexpr bool in_registers = held == 1 || held == 2;

 public:
  static std::size_t shared_bytes(std::int64_t width) {
    bool const shared = !in_partial && !in_registers;
    return shared ? static_cast<std::size_t>(outputs * width) * sizeof(float) : 0;
  }
  __device__ ColumnSums(float* partial, int width)
      : partial_{partial}, width_{width}, packs_{width / V} {
    for_columns([&](int output, int at, int slot, int v) { sum(output, at, slot, v) = 0; });
  }
  /// Sum for element v of pack `at`, the thread's slot-th.
  __device__ float& sum(int output, int at, int slot, int v) {
    if constexpr (in_partial) {
      return partial_[output * width_ + at];
    } else if constexpr (in_registers) {
      return kept_[output][slot][v];
    } else {
      return reinterpret_cast<float*>(shared_memory())[(output * V + v) * packs_ + at];
    }
  }
  __device__ void hand_over() {
    if constexpr (!in_partial) {
      for_packs<Shape>(packs_, [&](int at, int slot) {
#pragma unroll
        for (int output = 0; output < outputs; ++output) {
          float pack[V];
#pragma unroll
          for (int v = 0; v < V; ++v) {
            pack[v] = sum(output, at, slot, v);
          }
          store_pack(partial_ + output * width_ + at * V, pack);
        }
      });
    }
  }

 private:
  template <class F>
  __device__ void for_columns(F const& f) const {
    for_packs<Shape>(packs_, [&](int at, int slot) {
#pragma unroll
      for (int output = 0; output < outputs; ++output) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
          f(output, at, slot, v);
        }
      }
    });
  }
  float* partial_;
  int width_, packs_;
  float kept_[in_registers ? outputs : 1][in_registers ? held : 1][in_registers ? V : 1];
};

/// One of the two outputs per blockIdx.y; a warp has 32 columns, the block's warps have the blocks
/// in turn.
template <class T>
__global__ __launch_bounds__(1024) void combine_kernel(float const* __restrict__ partial,
                                                       std::int64_t blocks, std::int64_t width,
                                                       T* first, T* second) {
  __shared__ float sums[max_warps][warp_threads];
  unsigned const lane = threadIdx.x % warp_threads, warp = threadIdx.x / warp_threads;
  std::int64_t const column = std::int64_t{blockIdx.x} * warp_threads + lane;
  unsigned const warps = blockDim.x / warp_threads;
  std::int64_t const share = (blocks + warps - 1) / warps;
  std::int64_t const end = min((std::int64_t{warp} + 1) * share, blocks);
  float sum = 0;
  if (column < width) {
    float const* const at = partial + blockIdx.y * width + column;
#pragma unroll 8
    for (std::int64_t block = warp * share; block < end; ++block) {
      sum += at[block * gridDim.y * width];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp == 0 && column < width) {
    float total = 0;
    for (unsigned other = 0; other < warps; ++other) {
      total += sums[other][lane];
    }
    device_store((blockIdx.y == 0 ? first : second)[column], total);
  }
}

/// Adds up `blocks` rows of partial sums of `width` columns; with `second`, each is followed by one
/// for that.
template <class T>
void combine(float const* partial, RowBlocks const& blocks, std::int64_t width, T* first, T* second,
             CUstream_st* stream) {
  auto const strips = static_cast<unsigned>((width + warp_threads - 1) / warp_threads);
  auto const warps = static_cast<unsigned>(std::min<std::int64_t>(blocks.blocks, max_warps));
  launch(combine_kernel<T>, {dim3{strips, second == nullptr ? 1U : 2U}, warps * warp_threads},
         stream, partial, blocks.blocks, width, first, second);
}

}  // namespace
}  // namespace offstage::kernels::cuda
