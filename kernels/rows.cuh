#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/error.hpp"
#include "elements.cuh"
#include "launch.cuh"
#include "tensor_core.cuh"

/// What the kernels on rows of activations share. A row is read and written in packs: V neighbours at once.
namespace offstage::kernels::cuda {
namespace {

constexpr unsigned warp_threads = 32;
constexpr unsigned max_warps = 32;  // of a block
constexpr unsigned whole_warp = 0xFFFFFFFFU;

template <class T>
constexpr int wide = 16 / static_cast<int>(sizeof(T));  // elements of the widest access

/// Its address is a multiple of its size.
template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
  T at[V];
};

template <int V, class T>
__device__ Pack<T, V> read_pack(T const* from) {
  return *reinterpret_cast<Pack<T, V> const*>(from);
}
template <class T, int V>
__device__ void write_pack(T* to, Pack<T, V> const& pack) {
  *reinterpret_cast<Pack<T, V>*>(to) = pack;
}

template <class T, int V>
__device__ void widen(float (&to)[V], Pack<T, V> const& from) {
#pragma unroll
  for (int v = 0; v < V; ++v) {
    to[v] = device_load(from.at[v]);
  }
}
template <int V, class T>
__device__ void load_pack(float (&to)[V], T const* from) {
  widen(to, read_pack<V>(from));
}

/// Each rounded to nearest even. What a NaN's bits are is up to the GPU.
template <class T, int V>
__device__ Pack<T, V> round_pack(float const (&from)[V]) {
  if constexpr (sizeof(T) == 2 && V % 2 == 0) {
    Pack<std::uint32_t, V / 2> pairs;
#pragma unroll
    for (int v = 0; v < V; v += 2) {
      pairs.at[v / 2] = pack<T>(from[v], from[v + 1]);
    }
    return __builtin_bit_cast(Pack<T, V>, pairs);
  } else {
    Pack<T, V> rounded;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      device_store(rounded.at[v], from[v]);
    }
    return rounded;
  }
}
template <int V, class T>
__device__ void store_pack(T* to, float const (&from)[V]) {
  write_pack(to, round_pack<T>(from));
}

/// sum += the packs at from(begin) to from(end - 1), in order; `at_once` of them, then of what is left half as many and
/// so on, are read before the first is added.
template <int at_once, int V, class From>
__device__ void add_packs(float (&sum)[V], int begin, int end, From const& from) {
  for (; begin + at_once <= end; begin += at_once) {
    decltype(read_pack<V>(from(0))) read[at_once];
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      read[k] = read_pack<V>(from(begin + k));
    }
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      float value[V];
      widen(value, read[k]);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        sum[v] += value[v];
      }
    }
  }
  if constexpr (at_once > 1) {
    add_packs<at_once / 2>(sum, begin, end, from);
  }
}

/// 1 / (1 + exp(-x)); 0 and 1 far out.
__device__ inline float sigmoid(float x) {
  return __fdividef(1.0F, 1.0F + __expf(-x));
}

/// Every thread gets each of its `values` combined with those of all threads of the block, in one order: the same
/// bits everywhere and every time. `idle` changes nothing when combined. Between two uses of one `exchange` there
/// must be another barrier.
template <int N, class Number, class Combine>
__device__ void combine_block(Number (&values)[N], Number idle, Number (&exchange)[N][max_warps],
                              Combine combine) {
  auto const within_warp = [&] {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int distance = warp_threads / 2; distance > 0; distance /= 2) {
        values[n] = combine(values[n], __shfl_xor_sync(whole_warp, values[n], distance));
      }
    }
  };
  unsigned const lane = threadIdx.x % warp_threads;
  within_warp();
  if (lane == 0) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      exchange[n][threadIdx.x / warp_threads] = values[n];
    }
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    values[n] = lane < blockDim.x / warp_threads ? exchange[n][lane] : idle;
  }
  within_warp();
}

template <int N>
__device__ void sum_block(float (&values)[N], float (&exchange)[N][max_warps]) {
  combine_block(values, 0.0F, exchange, [](float a, float b) { return a + b; });
}

/// How a block works on a row: in packs of V elements, of which each thread holds up to `held` in registers; 0: as many
/// as there are, and it reads them again at each use.
template <int V, int held_packs>
struct RowShape {
  static constexpr int pack = V, held = held_packs;
  unsigned threads;  ///< of the block: whole warps
};

/// f(pack, slot) for each pack of the calling thread.
template <class Shape, class F>
__device__ void for_packs(int packs, F const& f) {
  if constexpr (Shape::held == 0) {
    for (int at = static_cast<int>(threadIdx.x); at < packs; at += static_cast<int>(blockDim.x)) {
      f(at, 0);
    }
  } else {
#pragma unroll
    for (int slot = 0; slot < Shape::held; ++slot) {
      int const at = static_cast<int>(threadIdx.x + static_cast<unsigned>(slot) * blockDim.x);
      if (at < packs) {
        f(at, slot);
      }
    }
  }
}

/// The calling thread's packs of one row.
template <class T, class Shape>
class RowPart {
 public:
  /// Begins to read them, unless they are read at each use.
  __device__ RowPart(T const* row, int packs) : row_{row} {
    if constexpr (Shape::held > 0) {
      for_packs<Shape>(packs, [&](int at, int slot) { read(at, slot); });
    }
  }
  __device__ void widen_to(float (&to)[Shape::pack], int at, int slot) {
    if constexpr (Shape::held == 0) {
      read(at, slot);
    }
    widen(to, held_[slot]);
  }
  __device__ void replace(int slot, Pack<T, Shape::pack> const& by) { held_[slot] = by; }
  /// Where the packs are that replaced those of the row; each thread may read what it wrote itself.
  __device__ void read_again_from(T const* row) { row_ = row; }

 private:
  __device__ void read(int at, int slot) {
    held_[slot] = read_pack<Shape::pack>(row_ + std::int64_t{at} * Shape::pack);
  }
  T const* row_;
  Pack<T, Shape::pack> held_[Shape::held > 0 ? Shape::held : 1];
};

/// The row of a norm from element `row` on: of x, or of sum = x + delta, rounded, which is written if delta is not null.
template <class T, class Shape>
__device__ RowPart<T, Shape> residual_row(T const* x, T const* delta, T* sum, std::int64_t row,
                                          int packs) {
  constexpr int V = Shape::pack;
  RowPart<T, Shape> part{x + row, packs};
  if (delta == nullptr) {
    return part;
  }
  RowPart<T, Shape> addend{delta + row, packs};
  for_packs<Shape>(packs, [&](int at, int slot) {
    float value[V], more[V];
    part.widen_to(value, at, slot);
    addend.widen_to(more, at, slot);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      value[v] += more[v];
    }
    auto const rounded = round_pack<T>(value);
    write_pack(sum + row + std::int64_t{at} * V, rounded);
    part.replace(slot, rounded);
  });
  part.read_again_from(sum + row);
  return part;
}

constexpr unsigned max_row_threads = 512;

inline unsigned whole_warps(std::int64_t threads) {
  return static_cast<unsigned>((threads + warp_threads - 1) / warp_threads * warp_threads);
}

/// Whether rows of so many elements, one after another, begin at multiples of 16 bytes in each array.
template <class... Elements>
bool are_wide(std::int64_t width, Elements const*... arrays) {
  return ((reinterpret_cast<std::uintptr_t>(arrays) % 16 == 0 &&
           width * static_cast<std::int64_t>(sizeof(Elements)) % 16 == 0) &&
          ...);
}

/// Calls launch(shape) with the RowShape for rows of T. Errors: PreconditionError beyond 2^31 - 1 elements a row.
template <class T, class Launch>
void with_row_shape(bool aligned, std::int64_t width, Launch const& launch_with) {
  require(width <= INT_MAX, "a row of activations has more than 2^31 - 1 elements");
  std::int64_t const packs = width / wide<T>;
  if (aligned && packs <= 256) {
    launch_with(RowShape<wide<T>, 1>{whole_warps(packs)});
  } else if (aligned && packs <= 512) {
    launch_with(RowShape<wide<T>, 2>{whole_warps((packs + 1) / 2)});
  } else if (aligned && packs <= 4 * std::int64_t{max_row_threads}) {
    launch_with(RowShape<wide<T>, 4>{whole_warps((packs + 3) / 4)});
  } else {
    launch_with(RowShape<1, 0>{whole_warps(std::min<std::int64_t>(width, max_row_threads))});
  }
}

/// Calls launch(std::integral_constant<int, V>) with the widest packs of T, or with packs of one.
template <class T, class Launch>
void with_packs(bool aligned, Launch const& launch_with) {
  if (aligned) {
    launch_with(std::integral_constant<int, wide<T>>{});
  } else {
    launch_with(std::integral_constant<int, 1>{});
  }
}

/// The grid of a kernel whose threads take packs in turn.
inline Grid flat_grid(std::int64_t packs) {
  return {blocks_for(static_cast<std::size_t>(packs), block_size), block_size};
}

/// The grid of a kernel each of whose threads works on one pack: row blockIdx.x, pack pack_of_row().
inline Grid pack_grid(std::int64_t rows, std::int64_t packs) {
  std::int64_t const strips = (packs + block_size - 1) / block_size;
  return {dim3{static_cast<unsigned>(rows), static_cast<unsigned>(strips)},
          whole_warps((packs + strips - 1) / strips)};
}
__device__ inline std::int64_t pack_of_row() {
  return std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
}

/// Sums over rows: fixed blocks of rows have one partial sum per column in scratch memory, and a second kernel adds
/// these in order.
struct RowBlocks {
  std::int64_t blocks, rows_per_block;
  [[nodiscard]] std::size_t scratch_bytes(std::int64_t columns) const {
    return static_cast<std::size_t>(blocks * columns) * sizeof(float);
  }
};

/// Enough blocks for a large GPU, few enough that their sums take less than 32 MiB or so.
inline RowBlocks row_blocks(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t least_rows = 4, most_blocks = 512, most_sums = 8 << 20;
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

/// A block's sums of `outputs` times `width` columns, each kept by the one thread whose packs have the column: element v
/// of pack p at v * packs + p of working(), so that neighbours' sums are neighbours. They are in shared memory and go to
/// `partial`, in the columns' order, at the end; without registers for a row (V = 1) they are there all the time.
template <class Shape>
class ColumnSums {
 public:
  static std::size_t shared_bytes(std::int64_t columns) {
    return Shape::held > 0 ? static_cast<std::size_t>(columns) * sizeof(float) : 0;
  }
  __device__ ColumnSums(float* partial, int width, int outputs)
      : partial_{partial},
        working_{Shape::held > 0 ? reinterpret_cast<float*>(shared_memory()) : partial},
        width_{width},
        outputs_{outputs} {
    for_columns([&](int kept, int) { working_[kept] = 0; });
  }
  [[nodiscard]] __device__ float* working() const { return working_; }
  __device__ void hand_over() const {
    if constexpr (Shape::held > 0) {
      for_columns([&](int kept, int column) { partial_[column] = working_[kept]; });
    }
  }

 private:
  template <class F>
  __device__ void for_columns(F const& f) const {
    int const packs = width_ / Shape::pack;
    for_packs<Shape>(packs, [&](int at, int) {
      for (int first = 0; first < outputs_ * width_; first += width_) {
#pragma unroll
        for (int v = 0; v < Shape::pack; ++v) {
          f(first + v * packs + at, first + at * Shape::pack + v);
        }
      }
    });
  }
  float* partial_;
  float* working_;
  int width_, outputs_;
};

/// One of the two outputs per blockIdx.y; a warp has 32 columns, the block's warps have the blocks in turn.
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

/// Adds up `blocks` rows of partial sums of `width` columns; with `second`, each is followed by one for that.
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
