#pragma once

#include "kernels/on_device.hpp"

namespace offstage::kernels {
namespace {  // sources compiled for one instruction set must not share it (base/simd.hpp)

constexpr float inverse_root_2_pi = 0.3989422804F;

/// P(X > a) of the standard normal distribution over exp(-a a / 2), for a >= 0: half of erfcx(a /
/// sqrt(2)). The relative error is a few roundings.
///
/// Computed as t p(t) with t = 1 / (1 + 0.305 a), as in Abramowitz & Stegun 7.1.26. The polynomial
/// is a minimax fit for a from 0 to 13.3, where the exponential ends in FP32; its largest relative
/// error is 1.2e-7.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE inline float normal_tail_ratio(float a) {
  float const t = 1.0F / (1.0F + 0.305F * a);
  float p = 0.03669919F;
  p = p * t - 0.1529883F;
  p = p * t + 0.18571687F;
  p = p * t - 0.037976794F;
  p = p * t + 0.12102166F;
  p = p * t + 0.103420876F;
  p = p * t + 0.12246682F;
  p = p * t + 0.121639736F;
  return p * t;
}

/// P(X <= x), where bell = exp(-x x / 2).
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE inline float normal_below(float x, float bell) {
  float const tail = bell * normal_tail_ratio(x < 0.0F ? -x : x);
  return x < 0.0F ? tail : 1.0F - tail;
}

}  // namespace
}  // namespace offstage::kernels
