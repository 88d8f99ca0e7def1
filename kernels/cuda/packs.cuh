#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <type_traits>

#include "base/error.hpp"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_core.cuh"

/// Packs: neighbouring elements of activations that are read, written and worked on at once; and
/// the grids of kernels whose threads take packs.
namespace offstage::kernels::cuda {
namespace {

constexpr unsigned warp_threads = 32;
constexpr unsigned whole_warp = 0xFFFFFFFFU;

template <class T>
constexpr int wide = 16 / static_cast<int>(sizeof(T));  // elements of the widest access

/// Elements of a pack of arrays of several types, whose widest accesses are 16 bytes: the others'
/// are less, so that a warp's accesses have no gaps.
template <class... T>
constexpr int wide_together = 16 / static_cast<int>(std::max({sizeof(T)...}));

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

/// sum += the packs at from(begin) to from(end - 1), in order; `at_once` of them, then of what is
/// left half as many and so on, are read before the first is added.
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

/// work(i, std::integral_constant<int, V>) for each pack of `count` elements, i its first, and then
/// with packs of one for those that are left: dealt to all threads of a grid of one dimension, at
/// least V.
template <int V, class Work>
__device__ void for_elements(std::size_t count, Work const& work) {
  std::size_t const thread = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t pack = thread; pack < count / V; pack += stride) {
    work(pack * V, std::integral_constant<int, V>{});
  }
  if constexpr (V > 1) {
    std::size_t const rest = count / V * V + thread;
    if (rest < count) {
      work(rest, std::integral_constant<int, 1>{});
    }
  }
}

/// 1 / (1 + exp(-x)); 0 and 1 far out.
__device__ inline float sigmoid(float x) {
  return __fdividef(1.0F, 1.0F + __expf(-x));
}

inline unsigned whole_warps(std::int64_t threads) {
  return static_cast<unsigned>((threads + warp_threads - 1) / warp_threads * warp_threads);
}

/// Whether packs of V begin at multiples of their size in each array.
template <int V, class... Elements>
bool are_packs(Elements const*... arrays) {
  return ((reinterpret_cast<std::uintptr_t>(arrays) % (V * sizeof(Elements)) == 0) && ...);
}

/// Whether rows of so many elements, one after another, begin at multiples of 16 bytes in each
/// array.
template <class... Elements>
bool are_wide(std::int64_t width, Elements const*... arrays) {
  return ((reinterpret_cast<std::uintptr_t>(arrays) % 16 == 0 &&
           width * static_cast<std::int64_t>(sizeof(Elements)) % 16 == 0) &&
          ...);
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
inline Grid flat_grid(std::int64_t packs,
                      std::source_location where = std::source_location::current()) {
  return {blocks_for(static_cast<std::size_t>(packs), block_size), block_size, 0, where};
}

/// The grid's width for kernels with a block per row. Errors: PreconditionError beyond what a grid
/// can be.
inline unsigned row_grid(std::int64_t rows) {
  require(rows <= INT_MAX, "there are more than 2^31 - 1 rows of activations");
  return static_cast<unsigned>(rows);
}

/// The grid of a kernel each of whose threads works on one pack: row blockIdx.x, pack
/// pack_of_row().
inline Grid pack_grid(std::int64_t rows, std::int64_t packs,
                      std::source_location where = std::source_location::current()) {
  std::int64_t const strips = (packs + block_size - 1) / block_size;
  return {dim3{row_grid(rows), static_cast<unsigned>(strips)},
          whole_warps((packs + strips - 1) / strips), 0, where};
}
__device__ inline std::int64_t pack_of_row() {
  return std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x;
}

}  // namespace
}  // namespace offstage::kernels::cuda
