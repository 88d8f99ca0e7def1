#pragma once

#include <cstdint>

namespace offstage::kernels {
namespace {  // sources compiled for one instruction set must not share it (base/simd.hpp)

/// a * b + c, fused where the instruction set can. Without FMA the builtin would call the library.
[[gnu::always_inline]] inline float multiply_add(float a, float b, float c) {
#ifdef __FMA__
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// exp(x) within 1e-7 of its value for x in [-87, 88]; 0 below -87.7, infinity above 88.4, NaN for
/// NaN. Free of branches and calls, so that loops over it vectorise.
///
/// exp(x) = 2^n exp(r) with n = round(x / ln 2), |r| <= ln 2 / 2, and a polynomial for exp(r) whose
/// largest relative error (a minimax fit) is 3e-9.
[[gnu::always_inline]] inline float simd_exp(float x) {
  constexpr float inverse_ln2 = 1.442695F;
  constexpr float ln2_high = 0.693359375F;  // 9 bits, so n * ln2_high is exact
  constexpr float ln2_low = -2.1219444e-4F;
  constexpr float round = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  // At the limits n is -127 and 128, whose powers below come out as 0 and infinity. The order of
  // the comparisons lets NaN through.
  x = x < -88.0F ? -88.0F : x;
  x = x > 88.5F ? 88.5F : x;
  float const shifted = multiply_add(x, inverse_ln2, round);
  float const n = shifted - round;
  float const r = multiply_add(n, -ln2_low, multiply_add(n, -ln2_high, x));
  float p = 0.0013814467F;
  p = multiply_add(p, r, 0.008368781F);
  p = multiply_add(p, r, 0.041668393F);
  p = multiply_add(p, r, 0.1666652F);
  p = multiply_add(p, r, 0.49999994F);
  p = multiply_add(p, r, 1.0F);
  p = multiply_add(p, r, 1.0F);
  // The low bits of `shifted` hold n; those of the constant itself leave at the top.
  auto const bits = __builtin_bit_cast(std::uint32_t, shifted);
  return p * __builtin_bit_cast(float, (bits + 127U) << 23);
}

}  // namespace
}  // namespace offstage::kernels
