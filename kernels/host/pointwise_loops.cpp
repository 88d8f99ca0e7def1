#include "kernels/host/pointwise_loops.hpp"

namespace offstage::kernels {

template <>
PointwiseLoops<float> const& pointwise_loops<float>() noexcept {
  switch (best_simd()) {
    case Simd::avx512:
      return avx512::loops_float;
    case Simd::avx2:
      return avx2::loops_float;
    case Simd::baseline:
      break;
  }
  return baseline::loops_float;
}

template <>
PointwiseLoops<bfloat16> const& pointwise_loops<bfloat16>() noexcept {
  switch (best_simd()) {
    case Simd::avx512:
      return avx512::loops_bfloat16;
    case Simd::avx2:
      return avx2::loops_bfloat16;
    case Simd::baseline:
      break;
  }
  return baseline::loops_bfloat16;
}

template <>
PointwiseLoops<float16> const& pointwise_loops<float16>() noexcept {
  switch (best_simd()) {
    case Simd::avx512:
      return avx512::loops_float16;
    case Simd::avx2:
      return avx2::loops_float16;
    case Simd::baseline:
      break;
  }
  return baseline::loops_float16;
}

}  // namespace offstage::kernels
