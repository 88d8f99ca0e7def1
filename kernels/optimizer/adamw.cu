#include "kernels/optimizer/adamw.hpp"

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"

namespace offstage::kernels::cuda {
namespace {

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
  }
  launch(adamw_kernel<G, W>, {blocks_for(count, block_size), block_size}, stream,
         s.parameter.data(), s.momentum.data(), s.variance.data(), s.gradient.data(),
         s.working_copy.data(), count, c);
}

template void adamw(AdamwState<float, float> const&, AdamwStep const&, CUstream_st*);
template void adamw(AdamwState<float, bfloat16> const&, AdamwStep const&, CUstream_st*);
template void adamw(AdamwState<bfloat16, float> const&, AdamwStep const&, CUstream_st*);
template void adamw(AdamwState<bfloat16, bfloat16> const&, AdamwStep const&, CUstream_st*);
template void adamw(AdamwState<float, float16> const&, AdamwStep const&, CUstream_st*);
template void adamw(AdamwState<float16, float> const&, AdamwStep const&, CUstream_st*);
template void adamw(AdamwState<float16, float16> const&, AdamwStep const&, CUstream_st*);

}  // namespace offstage::kernels::cuda
