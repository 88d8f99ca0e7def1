#pragma once

#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"

/// Elements on the GPU with the bits of the CPU: canonical.hpp and load and store of
/// base/dtype.hpp.
namespace offstage::kernels::cuda {
namespace {

constexpr int block_size = 256;  // threads; the kernels are bound by memory bandwidth
constexpr std::size_t max_blocks =
    8'192;  // several times what any GPU holds; grid-stride loops cover the rest

/// Blocks for this much work, so much of it by each block; at least one: an empty grid is a launch
/// error.
inline unsigned blocks_for(std::size_t work, std::size_t per_block) {
  return static_cast<unsigned>(
      std::clamp<std::size_t>((work + per_block - 1) / per_block, 1, max_blocks));
}

__device__ inline float device_load(float value) {
  return value;
}
__device__ inline float device_load(bfloat16 value) {
  return __uint_as_float(std::uint32_t{value.bits} << 16);
}
__device__ inline float device_load(float16 value) {
  return __half2float(__ushort_as_half(value.bits));
}

__device__ inline float device_canonical(float value) {
  return value == value ? value : __uint_as_float(0x7FC00000U);
}

// Round `value`, which is canonical if it is NaN; as to_bf16 and to_fp16 in base/dtype.hpp.
__device__ inline void device_store(float& to, float value) {
  to = value;
}
__device__ inline void device_store(bfloat16& to, float value) {
  std::uint32_t const bits = __float_as_uint(value);
  std::uint32_t const rounding = value == value ? 0x7FFFU + ((bits >> 16) & 1U) : 0U;
  to.bits = static_cast<std::uint16_t>((bits + rounding) >> 16);
}
__device__ inline void device_store(float16& to, float value) {
  // CUDA's own NaN is 0x7FFF.
  to.bits = value == value ? __half_as_ushort(__float2half_rn(value)) : fp16_canonical_nan;
}

}  // namespace
}  // namespace offstage::kernels::cuda
