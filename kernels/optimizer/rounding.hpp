#pragma once

#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/on_device.hpp"

/// Numbers in 16 and 8 bits, rounded stochastically, and the lossless split of a parameter. They
/// are always inlined, without the header bit, as those of base/dtype.hpp: sources compiled for one
/// instruction set have them too. None may be given a NaN that is not canonical (canonical.hpp).
///
/// A number x between its neighbours a < b in magnitude becomes b with probability (x - a) / (b -
/// a), so that its mean is x: random bits are added below the place that is kept, and the sum is
/// cut off. Rounded to nearest, v would stand still once its change in a step, (1 - beta2)(g^2 -
/// v), is below half a place of it: at beta2 = 0.999 for any g^2 below 5 v in bf16. A variance that
/// is not zero never becomes zero, which m / (0 + eps) would turn into a huge step.
namespace offstage::kernels {

/// Elements of a layer that have one key: a block of 256.
struct BlockKey {
  std::uint32_t start, mask;
};

/// Element `index` of a block: 32 bits, the upper ones for the momentum, the lower ones for the
/// variance. In 8 bits each takes 20; those that both have are the last of m's and the first of
/// v's.
/// Source: the finaliser "lowbias32" with the constants 21F0AAAD and 735A2D97 (C. Wellons,
///         hash-prospector), of a counter; half of the block's key, which is of the Philox
///         generator, goes in between.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint32_t random_word(
    BlockKey key, std::uint32_t index) {
  std::uint32_t x = key.start + index;
  x = (x ^ (x >> 16)) * 0x21F0AAADU;
  x ^= key.mask;
  x = (x ^ (x >> 15)) * 0x735A2D97U;
  return x ^ (x >> 15);
}

[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint32_t bits_of_float(
    float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline float float_of_bits(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

/// A moment as it is kept: zero where it would be subnormal. One that only fades would become so
/// after some hundred steps without a gradient and stay so for ever, as 0.9 times 4 * 2^-149 rounds
/// to itself, and cores of Intel take over ten times as long for each such number.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline float kept(float moment) {
  std::uint32_t const bits = bits_of_float(moment);
  return float_of_bits((bits & 0x7F800000U) == 0 ? 0U : bits);
}

/// The smaller one: signed, which every instruction set compares.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::int32_t smaller(std::int32_t a,
                                                                                std::int32_t b) {
  return a < b ? a : b;
}
/// code, but 1 for the code 0 of a number that has other bits than 0.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint32_t not_zero(
    std::uint32_t code, float number) {
  auto const bits = static_cast<std::int32_t>(bits_of_float(number));
  auto const least = smaller(bits, 1);
  auto const signed_code = static_cast<std::int32_t>(code);
  return static_cast<std::uint32_t>(signed_code < least ? least : signed_code);
}

/// Rounds to bf16 with 16 random bits. Infinity stays, as do NaN and bf16's own numbers.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint16_t round_momentum16(
    float m, std::uint32_t random) {
  return static_cast<std::uint16_t>((bits_of_float(m) + (random >> 16)) >> 16);
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint16_t round_variance16(
    float v, std::uint32_t random) {
  std::uint32_t const code = (bits_of_float(v) + (random & 0xFFFFU)) >> 16;
  return static_cast<std::uint16_t>(not_zero(code, v));
}

// In 8 bits the number of code c in a block with the scale s is s (f(c) - f(0)), where f(c) is the
// float whose bits are those of `zero` and c steps of an eighth of a power of two. So the steps are
// even up to zero, an eighth of it each, and from there on grow with the numbers, as those of a
// float with three bits of significand. Of m, in 7 bits beside the sign, they go from 2^-18 s to
// almost 1.875 s; of v, which is a square, over twice as many powers, from 2^-34 s: where m is lost
// beside the block's largest, sqrt(v) is too. A scale is a power of two, so that nothing but the
// code rounds.

/// Codes of m and codes of v differ in these.
struct CodeFormat {
  float zero;  ///< f(0); code 1 is an eighth of it
  /// Smallest power of a scale, biased: with it code 1 is no subnormal float.
  std::uint32_t smallest_power;
};
constexpr CodeFormat momentum_codes{.zero = 0x1p-15F, .smallest_power = 19};
constexpr CodeFormat variance_codes{.zero = 0x1p-31F, .smallest_power = 35};

constexpr std::uint32_t infinity_bits = 0x7F800000U;
constexpr std::uint32_t nan_bits = 0x7FC00000U;

/// A block's scale, and its reciprocal. Zero for a block of zeros, NaN for one with infinity or
/// NaN, so that the whole block is NaN in the next step.
struct BlockScale {
  float scale, inverse;
};
/// `largest`: the bits of the block's largest magnitude. The scale is the smallest power of two of
/// which it is at most 1.875 times as large, from 2^(smallest_power - 127) to 2^126: beyond 1.875 *
/// 2^126 numbers become that.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline BlockScale scale_of(
    std::uint32_t largest, CodeFormat format) {
  if (largest == 0) {
    return {0.0F, 0.0F};
  }
  if (largest >= infinity_bits) {
    return {float_of_bits(nan_bits), 0.0F};
  }
  std::uint32_t power = (largest + 0xFFFFFU) >> 23;
  power = power < format.smallest_power ? format.smallest_power : power;
  power = power > 253 ? 253 : power;
  return {float_of_bits(power << 23), float_of_bits((254 - power) << 23)};
}

/// The code of a magnitude, in the lowest bits, beneath others; `random`: 20 bits.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint32_t encode(
    float magnitude, float inverse, std::uint32_t random, CodeFormat format) {
  constexpr std::int32_t below_2 = 0x3FFFFFFF;
  std::uint32_t const bits = bits_of_float(magnitude * inverse + format.zero);
  return static_cast<std::uint32_t>(smaller(static_cast<std::int32_t>(bits + random), below_2)) >>
         20;
}
/// The word has the code in its lowest bits, and zeros above.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline float decode(std::uint32_t code,
                                                                        float scale,
                                                                        CodeFormat format) {
  float const f = float_of_bits(bits_of_float(format.zero) + (code << 20));
  return f * scale - format.zero * scale;
}

[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint8_t round_momentum8(
    float m, float inverse, std::uint32_t random) {
  std::uint32_t const bits = bits_of_float(m);
  std::uint32_t const code =
      encode(float_of_bits(bits & 0x7FFFFFFFU), inverse, random >> 12, momentum_codes);
  return static_cast<std::uint8_t>((code & 0x7FU) | ((bits >> 24) & 0x80U));
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline float momentum_of(std::uint8_t code,
                                                                             float scale) {
  float const magnitude = decode(code & 0x7FU, scale, momentum_codes);
  return float_of_bits(bits_of_float(magnitude) ^ ((std::uint32_t{code} << 24) & 0x80000000U));
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint8_t round_variance8(
    float v, float inverse, std::uint32_t random) {
  std::uint32_t const code = encode(v, inverse, random & 0xFFFFFU, variance_codes) & 0xFFU;
  return static_cast<std::uint8_t>(not_zero(code, v));
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline float variance_of(std::uint8_t code,
                                                                             float scale) {
  return decode(code, scale, variance_codes);
}

// A parameter as its bf16 working copy and the 16 bits that this leaves: p's bits = copy * 2^16 +
// rest, with the rest as a signed number. So the copy is p rounded to nearest, ties away from zero;
// beyond the largest bf16 it is infinite.

[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline bfloat16 upper_half(float p) {
  return {static_cast<std::uint16_t>((bits_of_float(p) + 0x8000U) >> 16)};
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint16_t lower_half(float p) {
  return static_cast<std::uint16_t>(bits_of_float(p));
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline float join(bfloat16 upper,
                                                                      std::uint16_t lower) {
  std::uint32_t const rest = ((std::uint32_t{lower} ^ 0x8000U) - 0x8000U);
  return float_of_bits((std::uint32_t{upper.bits} << 16) + rest);
}

}  // namespace offstage::kernels

#undef OFFSTAGE_ON_DEVICE
