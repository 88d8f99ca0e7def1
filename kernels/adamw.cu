#include "adamw.hpp"

#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "platform/cuda/check.hpp"

namespace offstage::kernels::cuda {
namespace {

constexpr int block_size = 256;     // threads; the kernel is bound by memory bandwidth
constexpr int max_blocks = 65'535;  // the grid-stride loop covers the rest

__device__ float device_load(float value) {
  return value;
}
__device__ float device_load(bfloat16 value) {
  return __uint_as_float(std::uint32_t{value.bits} << 16);
}
__device__ float device_load(float16 value) {
  return __half2float(__ushort_as_half(value.bits));
}

__device__ float device_canonical(float value) {
  return value == value ? value : __uint_as_float(0x7FC00000U);
}

// Round `value`, which is canonical if it is NaN; as to_bf16 and to_fp16 in base/dtype.hpp.
__device__ void device_store(float& to, float value) {
  to = value;
}
__device__ void device_store(bfloat16& to, float value) {
  std::uint32_t const bits = __float_as_uint(value);
  std::uint32_t const rounding = value == value ? 0x7FFFU + ((bits >> 16) & 1U) : 0U;
  to.bits = static_cast<std::uint16_t>((bits + rounding) >> 16);
}
__device__ void device_store(float16& to, float value) {
  // CUDA's own NaN is 0x7FFF.
  to.bits = value == value ? __half_as_ushort(__float2half_rn(value)) : fp16_canonical_nan;
}

// The _rn intrinsics forbid the compiler's own contraction: same bits as the host.
template <class G, class W>
__global__ __launch_bounds__(block_size) void adamw_kernel(
    float* __restrict__ parameter, float* __restrict__ momentum, float* __restrict__ variance,
    G const* __restrict__ gradient, W* __restrict__ working_copy, std::size_t count,
    AdamwCoefficients const c) {
  std::size_t const stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    float const g = __fmul_rn(device_load(gradient[i]), c.gradient_scale);
    float const m = __fmaf_rn(c.beta1, momentum[i], __fmul_rn(c.one_minus_beta1, g));
    float const v = __fmaf_rn(c.beta2, variance[i], __fmul_rn(__fmul_rn(c.one_minus_beta2, g), g));
    float const d = __fmaf_rn(__fsqrt_rn(v), c.inverse_sqrt_correction2, c.epsilon);
    float const p = device_canonical(
        __fmaf_rn(-c.step_size, __fdiv_rn(m, d), __fmul_rn(parameter[i], c.decay)));
    parameter[i] = p;
    momentum[i] = device_canonical(m);
    variance[i] = device_canonical(v);
    device_store(working_copy[i], p);
  }
}

}  // namespace

template <class G, class W>
void adamw(AdamwState<G, W> const& s, AdamwStep const& step, CUstream_st* stream) {
  require_equal_lengths(s);
  AdamwCoefficients const c = adamw_coefficients(step);
  std::size_t const count = s.parameter.size();
  if (count == 0) {
    return;
  }  // an empty grid is a launch error
  auto const blocks =
      static_cast<int>(std::min<std::size_t>((count + block_size - 1) / block_size, max_blocks));
  adamw_kernel<<<blocks, block_size, 0, stream>>>(s.parameter.data(), s.momentum.data(),
                                                  s.variance.data(), s.gradient.data(),
                                                  s.working_copy.data(), count, c);
  offstage::cuda::check(cudaGetLastError());
}

template void adamw(AdamwState<float, float> const&, AdamwStep const&, CUstream_st*);
template void adamw(AdamwState<float, bfloat16> const&, AdamwStep const&, CUstream_st*);
template void adamw(AdamwState<bfloat16, float> const&, AdamwStep const&, CUstream_st*);
template void adamw(AdamwState<bfloat16, bfloat16> const&, AdamwStep const&, CUstream_st*);
template void adamw(AdamwState<float, float16> const&, AdamwStep const&, CUstream_st*);
template void adamw(AdamwState<float16, float> const&, AdamwStep const&, CUstream_st*);
template void adamw(AdamwState<float16, float16> const&, AdamwStep const&, CUstream_st*);

}  // namespace offstage::kernels::cuda
