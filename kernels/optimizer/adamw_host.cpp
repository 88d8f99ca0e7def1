#include "kernels/optimizer/adamw.hpp"

#include "kernels/host/simd_dispatch.hpp"
#include "kernels/optimizer/adamw_simd.hpp"

namespace offstage::kernels::host {

template <class G, class W>
void adamw(AdamwState<G, W> const& s, AdamwStep const& step, Simd simd) {
  require_equal_lengths(s);
  AdamwCoefficients const coefficients = adamw_coefficients(step);
  with_simd(simd, [&](auto chosen) {
    for_each_piece(s.parameter.size(), [&](std::size_t begin, std::size_t count) {
      adamw_range<chosen(), G, W>({.parameter = s.parameter.data() + begin,
                                   .momentum = s.momentum.data() + begin,
                                   .variance = s.variance.data() + begin,
                                   .gradient = s.gradient.data() + begin,
                                   .working_copy = s.working_copy.data() + begin,
                                   .count = count},
                                  coefficients);
    });
  });
}

template void adamw(AdamwState<float, float> const&, AdamwStep const&, Simd);
template void adamw(AdamwState<float, bfloat16> const&, AdamwStep const&, Simd);
template void adamw(AdamwState<bfloat16, float> const&, AdamwStep const&, Simd);
template void adamw(AdamwState<bfloat16, bfloat16> const&, AdamwStep const&, Simd);
template void adamw(AdamwState<float, float16> const&, AdamwStep const&, Simd);
template void adamw(AdamwState<float16, float> const&, AdamwStep const&, Simd);
template void adamw(AdamwState<float16, float16> const&, AdamwStep const&, Simd);

}  // namespace offstage::kernels::host
