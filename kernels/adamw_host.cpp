#include <algorithm>
#include <cstdint>

#include "adamw.hpp"
#include "adamw_simd.hpp"
#include "base/error.hpp"

namespace offstage::kernels::host {
namespace {

/// Elements that one thread takes at a time: long enough for the prefetchers, short enough to share
/// a small subgroup. A multiple of a cache line of anything, so that threads do not share lines.
constexpr std::size_t piece_elements = 64 * 1024;

template <Simd simd, class G, class W>
void adamw_pieces(AdamwState<G, W> const& s, AdamwCoefficients const& c) {
  std::size_t const count = s.parameter.size();
  auto const pieces = static_cast<std::int64_t>((count + piece_elements - 1) / piece_elements);
#pragma omp parallel for schedule(static)
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    std::size_t const begin = static_cast<std::size_t>(piece) * piece_elements;
    adamw_range<simd, G, W>({.parameter = s.parameter.data() + begin,
                             .momentum = s.momentum.data() + begin,
                             .variance = s.variance.data() + begin,
                             .gradient = s.gradient.data() + begin,
                             .working_copy = s.working_copy.data() + begin,
                             .count = std::min(piece_elements, count - begin)},
                            c);
  }
}

}  // namespace

template <class G, class W>
void adamw(AdamwState<G, W> const& state, AdamwStep const& step, Simd simd) {
  require(simd <= best_simd(), "adamw: this CPU does not have the instruction set asked for");
  require_equal_lengths(state);
  AdamwCoefficients const c = adamw_coefficients(step);
  switch (simd) {
    case Simd::avx512: return adamw_pieces<Simd::avx512>(state, c);
    case Simd::avx2: return adamw_pieces<Simd::avx2>(state, c);
    case Simd::baseline: return adamw_pieces<Simd::baseline>(state, c);
  }
}

template void adamw(AdamwState<float, float> const&, AdamwStep const&, Simd);
template void adamw(AdamwState<float, bfloat16> const&, AdamwStep const&, Simd);
template void adamw(AdamwState<bfloat16, float> const&, AdamwStep const&, Simd);
template void adamw(AdamwState<bfloat16, bfloat16> const&, AdamwStep const&, Simd);

}  // namespace offstage::kernels::host
