#pragma once

#include <vector>

#include "base/simd.hpp"

namespace offstage::kernels {

/// Instruction sets that this CPU runs.
inline std::vector<Simd> available_simd() {
  std::vector<Simd> all;
  for (Simd const simd : {Simd::baseline, Simd::avx2, Simd::avx512}) {
    if (simd <= best_simd()) {
      all.push_back(simd);
    }
  }
  return all;
}

/// One that this CPU cannot run.
inline Simd beyond_best_simd() {
  return static_cast<Simd>(static_cast<int>(best_simd()) + 1);
}

}  // namespace offstage::kernels
