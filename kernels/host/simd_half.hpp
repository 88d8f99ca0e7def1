#pragma once

#include <cstddef>

#include "base/dtype.hpp"

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

/// Rows of float16 to float and back by the CPU's own instructions, which GCC 12 does not use in
/// loops over to_float and to_fp16: those take three times as long.
namespace offstage::kernels {
namespace {  // sources compiled for one instruction set must not share it (base/simd.hpp)

inline void widen_half(float16 const* from, float* to, std::size_t count) {
  std::size_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) {
    auto const half = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(from + i));
    _mm512_storeu_ps(to + i, _mm512_maskz_cvtph_ps(0xFFFF, half));
  }
#elif defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    auto const half = _mm_loadu_si128(reinterpret_cast<__m128i const*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(half));
  }
#endif
  for (; i < count; ++i) {
    to[i] = to_float(from[i]);
  }
}

/// Rounds as to_fp16 does: the instructions differ from it in NaN alone.
inline void narrow_half(float const* from, float16* to, std::size_t count) {
  std::size_t i = 0;
#if defined(__AVX512F__)
  auto const nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000));
  for (; i + 16 <= count; i += 16) {
    auto const value = _mm512_loadu_ps(from + i);
    auto const is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    auto const half = _mm512_maskz_cvtps_ph(0xFFFF, _mm512_mask_blend_ps(is_nan, value, nan),
                                            _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), half);
  }
#elif defined(__F16C__)
  auto const nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
  for (; i + 8 <= count; i += 8) {
    auto const value = _mm256_loadu_ps(from + i);
    auto const is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    auto const half = _mm256_cvtps_ph(_mm256_blendv_ps(value, nan, is_nan),
                                      _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
  }
#endif
  for (; i < count; ++i) {
    to[i] = to_fp16(from[i]);
  }
}

}  // namespace
}  // namespace offstage::kernels
