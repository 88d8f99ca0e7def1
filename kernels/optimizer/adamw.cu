#include "kernels/optimizer/adamw.hpp"

#include "kernels/cuda/packs.cuh"

namespace offstage::kernels::cuda {
namespace {

// The _rn intrinsics forbid the compiler's own contraction: same bits as the host.
template <int V, class G, class W>
__global__ __launch_bounds__(block_size) void adamw_kernel(
    float* __restrict__ parameter, float* __restrict__ momentum, float* __restrict__ variance,
    G const* __restrict__ gradient, W* __restrict__ working_copy, std::size_t count,
    AdamwCoefficients const c) {
  for_elements<V>(count, [&](std::size_t i, auto pack) {
    auto const gradients = read_pack<pack.value>(gradient + i);
    auto parameters = read_pack<pack.value>(parameter + i);
    auto momenta = read_pack<pack.value>(momentum + i);
    auto variances = read_pack<pack.value>(variance + i);
    Pack<W, pack.value> rounded;
#pragma unroll
    for (int k = 0; k < pack.value; ++k) {
      float const g = __fmul_rn(device_load(gradients.at[k]), c.gradient_scale);
      float const m = __fmaf_rn(c.beta1, momenta.at[k], __fmul_rn(c.one_minus_beta1, g));
      float const v =
          __fmaf_rn(c.beta2, variances.at[k], __fmul_rn(__fmul_rn(c.one_minus_beta2, g), g));
      float const d = __fmaf_rn(__fsqrt_rn(v), c.inverse_sqrt_correction2, c.epsilon);
      float const p = device_canonical(
          __fmaf_rn(-c.step_size, __fdiv_rn(m, d), __fmul_rn(parameters.at[k], c.decay)));
      parameters.at[k] = p;
      momenta.at[k] = device_canonical(m);
      variances.at[k] = device_canonical(v);
      device_store(rounded.at[k], p);
    }
    write_pack(parameter + i, parameters);
    write_pack(momentum + i, momenta);
    write_pack(variance + i, variances);
    write_pack(working_copy + i, rounded);
  });
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
  constexpr int pack = wide_together<float, G, W>;
  bool const aligned = are_packs<pack>(s.parameter.data(), s.momentum.data(), s.variance.data(),
                                       s.gradient.data(), s.working_copy.data());
  launch(aligned ? adamw_kernel<pack, G, W> : adamw_kernel<1, G, W>,
         flat_grid(static_cast<std::int64_t>(aligned ? count / pack : count)), stream,
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
