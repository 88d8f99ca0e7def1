#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>

#include "base/error.hpp"
#include "kernels/cuda/packs.cuh"

/// Device code that kernels with a row of activations per block share.
namespace offstage::kernels::cuda {
namespace {

constexpr unsigned max_warps = 32;  // of a block

/// Every thread gets each of its `values` combined with those of all threads of the block, in one
/// order: the same bits everywhere and every time. `idle` changes nothing when combined. Between
/// two uses of one `exchange` there must be another barrier.
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

/// How a block works on a row: in packs of V elements, of which each thread holds up to `held` in
/// registers; 0: as many as there are, and it reads them again at each use.
template <int V, int held_packs>
struct RowShape {
  static constexpr int pack = V, held = held_packs;
  unsigned threads;  ///< threads of the block: whole warps
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
    using Held = Pack<T, Shape::pack>;
    T const* const from = row_ + std::int64_t{at} * Shape::pack;
    if constexpr (sizeof(Held) == sizeof(uint4)) {
      held_[slot] = __builtin_bit_cast(Held, read_in_order<uint4>(from));
    } else {
      held_[slot] = read_pack<Shape::pack>(from);
    }
  }
  T const* row_;
  Pack<T, Shape::pack> held_[Shape::held > 0 ? Shape::held : 1];
};

/// The row of a norm from element `row` on: of x, or of sum = x + delta, rounded, which is written
/// if delta is not null. Both are under way before either is waited for.
template <class T, class Shape>
__device__ RowPart<T, Shape> residual_row(T const* x, T const* delta, T* sum, std::int64_t row,
                                          int packs) {
  constexpr int V = Shape::pack;
  RowPart<T, Shape> addend{delta == nullptr ? nullptr : delta + row, delta == nullptr ? 0 : packs};
  RowPart<T, Shape> part{x + row, packs};
  if (delta == nullptr) {
    return part;
  }
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

inline RowShape<1, 0> shape_of_any_row(std::int64_t width) {
  return {whole_warps(std::min<std::int64_t>(width, max_row_threads))};
}

/// Calls launch(shape) with the RowShape for rows of T. Errors: PreconditionError beyond 2^31 - 1
/// elements a row.
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
    launch_with(shape_of_any_row(width));
  }
}

}  // namespace
}  // namespace offstage::kernels::cuda
