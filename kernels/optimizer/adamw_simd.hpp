#pragma once

#include <cstddef>

#include "kernels/optimizer/adamw.hpp"

namespace offstage::kernels {

/// AdamwState as raw pointers, which is what sources compiled for one instruction set may use
/// (base/simd.hpp).
template <class G, class W>
struct AdamwRange {
  float* parameter;
  float* momentum;
  float* variance;
  G const* gradient;
  W* working_copy;
  std::size_t count;
};

/// One step over a range, on the calling thread. Defined in adamw_simd.cpp, once for each `simd`.
template <Simd simd, class G, class W>
void adamw_range(AdamwRange<G, W> const& range, AdamwCoefficients const& coefficients);

}  // namespace offstage::kernels
