#pragma once

// In front of every .cu file that is compiled for the CPU: CUDA's headers first, which define these
// names too.
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "cuda_on_cpu/executor.hpp"
#include "cuda_on_cpu/runtime.hpp"
#include "cuda_on_cpu/tensor_core.hpp"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __launch_bounds__
#undef __align__
#undef __forceinline__
#undef __noinline__
#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __forceinline__ inline
#define __noinline__

#define threadIdx (::offstage::cuda_on_cpu::here().thread)
#define blockIdx (::offstage::cuda_on_cpu::here().block)
#define blockDim (::offstage::cuda_on_cpu::here().block_size)
#define gridDim (::offstage::cuda_on_cpu::here().grid_size)

using std::max;
using std::min;

inline float __uint_as_float(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
inline std::uint32_t __float_as_uint(float value) {
  return std::bit_cast<std::uint32_t>(value);
}
inline double __longlong_as_double(long long bits) {
  return std::bit_cast<double>(bits);
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fsqrt_rn(float a) {
  return std::sqrt(a);
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
inline double __fma_rn(double a, double b, double c) {
  return std::fma(a, b, c);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __expf(float x) {
  return std::exp(x);
}
inline int __popc(std::uint32_t bits) {
  return std::popcount(bits);
}
template <class T>
void __stwb(T* address, T value) {
  *address = value;
}

inline void __syncthreads() {
  offstage::cuda_on_cpu::sync_block();
}
inline void __syncwarp(std::uint32_t /*mask*/ = 0xFFFFFFFFU) {
  offstage::cuda_on_cpu::sync_warp();
}

// Masks are full: a lane that takes no part would hold up the others, as on a GPU.
template <class T>
T __shfl_sync(std::uint32_t /*mask*/, T value, int source, int width = 32) {
  auto const lane = offstage::cuda_on_cpu::here().lane;
  auto const all = offstage::cuda_on_cpu::exchange(value);
  auto const group = static_cast<unsigned>(width);
  return all[lane / group * group + static_cast<unsigned>(source) % group];
}
template <class T>
T __shfl_xor_sync(std::uint32_t /*mask*/, T value, int mask, int width = 32) {
  auto const lane = offstage::cuda_on_cpu::here().lane;
  auto const all = offstage::cuda_on_cpu::exchange(value);
  auto const other = lane ^ static_cast<unsigned>(mask);
  auto const group = static_cast<unsigned>(width);
  return all[other / group <= lane / group ? other : lane];
}
template <class T>
T __shfl_down_sync(std::uint32_t /*mask*/, T value, unsigned delta, int width = 32) {
  auto const lane = offstage::cuda_on_cpu::here().lane;
  auto const all = offstage::cuda_on_cpu::exchange(value);
  auto const group = static_cast<unsigned>(width);
  return all[lane % group + delta < group ? lane + delta : lane];
}
inline std::uint32_t __ballot_sync(std::uint32_t /*mask*/, int predicate) {
  auto const all = offstage::cuda_on_cpu::exchange(predicate);
  std::uint32_t votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    votes |= all[lane] != 0 ? 1U << lane : 0U;
  }
  return votes;
}

// Its grids are those of a GPU.
#include "kernels/cuda/launch.cuh"

namespace offstage::kernels::cuda {
namespace {

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), Grid const& grid, CUstream_st* stream,
            Arguments... arguments) {
  offstage::cuda::Launch const call{reinterpret_cast<void const*>(kernel), stream, grid.where};
  call.check(cuda_on_cpu::begin_launch(grid.blocks, grid.threads, grid.shared_bytes));
  cuda_on_cpu::enqueue(stream, [=] {
    cuda_on_cpu::run_kernel([&] {
      cuda_on_cpu::run_grid(grid.blocks, grid.threads, grid.shared_bytes,
                            [&] { kernel(static_cast<Parameters>(arguments)...); });
    });
  });
  call.finish();
}

inline std::byte* shared_memory() {
  return cuda_on_cpu::shared_memory();
}

}  // namespace
}  // namespace offstage::kernels::cuda
