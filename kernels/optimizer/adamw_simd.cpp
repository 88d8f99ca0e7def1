#include "kernels/optimizer/adamw_simd.hpp"

#include <emmintrin.h>

#include "kernels/host/simd_half.hpp"
#include "kernels/optimizer/canonical.hpp"

namespace offstage::kernels {
namespace {

/// Elements between two looks for NaN; a multiple of a cache line of any type.
constexpr std::size_t block_elements = 128;

template <class G, class W>
[[gnu::always_inline]] inline AdamwRange<G, W> part(AdamwRange<G, W> const& range,
                                                    std::size_t begin, std::size_t count) {
  return {.parameter = range.parameter + begin,
          .momentum = range.momentum + begin,
          .variance = range.variance + begin,
          .gradient = range.gradient + begin,
          .working_copy = range.working_copy + begin,
          .count = count};
}

/// store_canonical<W>(value) for a value that is no NaN: the test costs AVX2 a sixth of its rate.
template <class W>
[[gnu::always_inline]] inline W store_number(float value) {
  if constexpr (std::is_same_v<W, float>) {
    return value;
  } else {
    auto const bits = __builtin_bit_cast(std::uint32_t, value);
    return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
  }
}

/// The gradient as a type that load() reads in vectors: float16 in `wide`.
template <class G>
[[gnu::always_inline]] inline auto const* readable(G const* gradient, [[maybe_unused]] float* wide,
                                                   [[maybe_unused]] std::size_t count) {
  if constexpr (std::is_same_v<G, float16>) {
    widen_half(gradient, wide, count);
    return static_cast<float const*>(wide);
  } else {
    return gradient;
  }
}

/// One step over at most block_elements. Plain C++, which the compiler vectorises; builtins because
/// <cmath>'s functions are inline ones of a shared header.
template <class G, class W>
[[gnu::always_inline]] inline void step(AdamwRange<G, W> range, AdamwCoefficients const& c) {
  float* __restrict__ const parameter = range.parameter;
  float* __restrict__ const momentum = range.momentum;
  float* __restrict__ const variance = range.variance;
  W* __restrict__ const working_copy = range.working_copy;
  float wide[block_elements];
  auto const* const gradient = readable(range.gradient, wide, range.count);
  std::uint32_t any_nan = 0;  // a bool would keep the compiler from vectorising
  for (std::size_t i = 0; i < range.count; ++i) {
    float const g = load(gradient[i]) * c.gradient_scale;
    float const m = __builtin_fmaf(c.beta1, momentum[i], c.one_minus_beta1 * g);
    float const v = __builtin_fmaf(c.beta2, variance[i], (c.one_minus_beta2 * g) * g);
    float const d = __builtin_fmaf(__builtin_sqrtf(v), c.inverse_sqrt_correction2, c.epsilon);
    float const p = __builtin_fmaf(-c.step_size, m / d, parameter[i] * c.decay);
    parameter[i] = p;
    momentum[i] = m;
    variance[i] = v;
    if constexpr (!std::is_same_v<W, float16>) {
      working_copy[i] = store_number<W>(p);
    }
    any_nan |= p != p ? 1U : 0U;
  }
  if constexpr (std::is_same_v<W, float16>) {
    narrow_half(parameter, working_copy, range.count);
  }
  if (any_nan == 0) {
    return;
  }
  // Where m or v is NaN, p is, so that one test serves all three.
  for (std::size_t i = 0; i < range.count; ++i) {
    parameter[i] = canonical(parameter[i]);
    momentum[i] = canonical(momentum[i]);
    variance[i] = canonical(variance[i]);
    working_copy[i] = store_canonical<W>(parameter[i]);
  }
}

/// Writes past the caches: nobody reads the working copy while it would still be there, and a plain
/// store would read its line first.
template <class W>
[[gnu::always_inline]] inline void stream(W const* block, W* to) {
  constexpr std::size_t pieces = block_elements * sizeof(W) / sizeof(__m128i);
  auto const* const from = reinterpret_cast<__m128i const*>(block);
  auto* const lines = reinterpret_cast<__m128i*>(to);
  for (std::size_t i = 0; i < pieces; ++i) {
    _mm_stream_si128(lines + i, _mm_load_si128(from + i));
  }
}

}  // namespace

template <Simd simd, class G, class W>
void adamw_range(AdamwRange<G, W> const& views, AdamwCoefficients const& coefficients) {
  // Copies, which no store below can change.
  AdamwRange<G, W> const range = views;
  AdamwCoefficients const c = coefficients;
  constexpr std::size_t line_bytes = 64;
  std::size_t const past_line = reinterpret_cast<std::size_t>(range.working_copy) % line_bytes;
  std::size_t const to_line = (line_bytes - past_line) % line_bytes / sizeof(W);
  std::size_t i = to_line < range.count ? to_line : range.count;
  step(part(range, 0, i), c);
  for (; i + block_elements <= range.count; i += block_elements) {
    alignas(line_bytes) W rounded[block_elements];
    AdamwRange<G, W> block = part(range, i, block_elements);
    block.working_copy = rounded;
    step(block, c);
    stream(rounded, range.working_copy + i);
  }
  step(part(range, i, range.count - i), c);
  _mm_sfence();  // who learns that we are done must see the streamed lines too
}

template void adamw_range<Simd::OFFSTAGE_SIMD>(AdamwRange<float, float> const&,
                                               AdamwCoefficients const&);
template void adamw_range<Simd::OFFSTAGE_SIMD>(AdamwRange<float, bfloat16> const&,
                                               AdamwCoefficients const&);
template void adamw_range<Simd::OFFSTAGE_SIMD>(AdamwRange<bfloat16, float> const&,
                                               AdamwCoefficients const&);
template void adamw_range<Simd::OFFSTAGE_SIMD>(AdamwRange<bfloat16, bfloat16> const&,
                                               AdamwCoefficients const&);
template void adamw_range<Simd::OFFSTAGE_SIMD>(AdamwRange<float, float16> const&,
                                               AdamwCoefficients const&);
template void adamw_range<Simd::OFFSTAGE_SIMD>(AdamwRange<float16, float> const&,
                                               AdamwCoefficients const&);
template void adamw_range<Simd::OFFSTAGE_SIMD>(AdamwRange<float16, float16> const&,
                                               AdamwCoefficients const&);

}  // namespace offstage::kernels
