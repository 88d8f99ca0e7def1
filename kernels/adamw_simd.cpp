#include "adamw_simd.hpp"

#include <emmintrin.h>

#include "canonical.hpp"

namespace offstage::kernels {
namespace {

constexpr std::size_t line_bytes = 64;  // a cache line, and the widest vector

template <class W>
[[gnu::always_inline]] inline W round_number(float value) {
  if constexpr (sizeof(W) == 4) { return value; } else {
    auto const bits = __builtin_bit_cast(unsigned, value);
    return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
  }
}

/// One step over `count` elements, the parameters rounded to W at `out`. Plain C++, which the compiler
/// vectorises; builtins because <cmath>'s functions are inline ones of a shared header.
template <class G, class W>
[[gnu::always_inline]] inline void step(float* __restrict__ parameter, float* __restrict__ momentum,
                                        float* __restrict__ variance, G const* __restrict__ gradient,
                                        W* __restrict__ out, std::size_t count,
                                        AdamwCoefficients const& c) {
  std::uint32_t any_nan = 0;
  for (std::size_t i = 0; i < count; ++i) {
    float const g = load(gradient[i]) * c.gradient_scale;
    float const m = __builtin_fmaf(c.beta1, momentum[i], c.one_minus_beta1 * g);
    float const v = __builtin_fmaf(c.beta2, variance[i], (c.one_minus_beta2 * g) * g);
    float const d = __builtin_fmaf(__builtin_sqrtf(v), c.inverse_sqrt_correction2, c.epsilon);
    float const p = __builtin_fmaf(-c.step_size, m / d, parameter[i] * c.decay);
    parameter[i] = p;
    momentum[i] = m;
    variance[i] = v;
    out[i] = round_number<W>(p);
    any_nan |= p != p ? 1U : 0U;
  }
  if (any_nan != 0) [[unlikely]] {
    for (std::size_t i = 0; i < count; ++i) {
      parameter[i] = canonical(parameter[i]);
      momentum[i] = canonical(momentum[i]);
      variance[i] = canonical(variance[i]);
      out[i] = store<W>(parameter[i]);
    }
  }
}

/// Writes a block past the caches: nobody reads the working copy before it has left them, and a
/// plain store would read its line first.
template <class W, std::size_t size>
[[gnu::always_inline]] inline void stream(W const (&block)[size], W* to) {
  auto const* const from = reinterpret_cast<__m128i const*>(block);
  auto* const line = reinterpret_cast<__m128i*>(to);
  for (std::size_t i = 0; i < size * sizeof(W) / sizeof(__m128i); ++i) {
    _mm_stream_si128(line + i, _mm_load_si128(from + i));
  }
}

}  // namespace

template <Simd simd, class G, class W>
void adamw_range(AdamwRange<G, W> const& views, AdamwCoefficients const& coefficients) {
  AdamwRange<G,W> const range = views;
  constexpr std::size_t block_elements = 4 * line_bytes / sizeof(W);
  AdamwCoefficients const c = coefficients;  // a copy, which no store below can change
  std::size_t const past_line = reinterpret_cast<std::size_t>(range.working_copy) % line_bytes;
  std::size_t const to_line = (line_bytes - past_line) % line_bytes / sizeof(W);
  std::size_t i = to_line < range.count ? to_line : range.count;
  step(range.parameter, range.momentum, range.variance, range.gradient, range.working_copy, i, c);
  for (; i + block_elements <= range.count; i += block_elements) {
    alignas(line_bytes) W block[block_elements];
    step(range.parameter+i, range.momentum+i, range.variance+i, range.gradient+i, block, block_elements, c);
    stream(block, range.working_copy + i);
  }
  step(range.parameter+i, range.momentum+i, range.variance+i, range.gradient+i, range.working_copy+i, range.count - i, c);
  _mm_sfence();  // other threads must see the streamed lines once they see that we are done
}

template void adamw_range<Simd::OFFSTAGE_SIMD>(AdamwRange<float, float> const&,
                                               AdamwCoefficients const&);
template void adamw_range<Simd::OFFSTAGE_SIMD>(AdamwRange<float, bfloat16> const&,
                                               AdamwCoefficients const&);
template void adamw_range<Simd::OFFSTAGE_SIMD>(AdamwRange<bfloat16, float> const&,
                                               AdamwCoefficients const&);
template void adamw_range<Simd::OFFSTAGE_SIMD>(AdamwRange<bfloat16, bfloat16> const&,
                                               AdamwCoefficients const&);

}  // namespace offstage::kernels
