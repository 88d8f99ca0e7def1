#pragma once

#include <cstdint>

#include "base/dtype.hpp"

/// In functions that CUDA kernels have too.
#ifdef __CUDACC__
#define OFFSTAGE_ON_DEVICE __host__ __device__
#else
#define OFFSTAGE_ON_DEVICE
#endif

/// Numbers in 16 and 8 bits, rounded stochastically, and the lossless split of a parameter. Always inlined and without
/// <bit>, as base/dtype.hpp: sources compiled for one instruction set have them too. None may be given a NaN that is not
/// canonical (canonical.hpp).
///
/// A number x between its neighbours a < b in magnitude becomes b with probability (x - a) / (b - a), so that its mean
/// is x: random bits are added below the place that is kept, and the sum is cut off. Rounded to nearest, v would stand
/// still once its change in a step, (1 - beta2)(g^2 - v), is below half a place of it: at beta2 = 0.999 for any g^2 below 5 v
/// in bf16. A variance that is not zero never becomes zero, which m / (0 + eps) would turn into a huge step.
namespace offstage::kernels {

/// Elements of a layer that have one key: a block of 256.
struct BlockKey {
  std::uint32_t start, mask;
};

/// Element `index` of a block: 32 bits, the upper 16 for the momentum and the lower 16 for the variance.
/// Source: the finaliser "lowbias32" with the constants 21F0AAAD and 735A2D97 (C. Wellons, hash-prospector), of a
///         counter; half of the block's key, which is of the Philox generator, goes in between.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint32_t random_word(BlockKey key,
                                                                  std::uint32_t index) {
  std::uint32_t x = key.start + index;
  x = (x ^ (x >> 16)) * 0x21F0AAADU;
  x ^= key.mask;
  x = (x ^ (x >> 15)) * 0x735A2D97U;
  return x ^ (x >> 15);
}

[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint32_t bits_of_float(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline float float_of_bits(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

/// All ones if a < b, else 0, for differences that fit.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint32_t mask_if_less(std::uint32_t a,
                                                                   std::uint32_t b) {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(a - b) >> 31);
}
/// code, but 1 for the code 0 of a number whose magnitude has other bits than 0.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint32_t not_zero(std::uint32_t code,
                                                               std::uint32_t magnitude) {
  return code | (mask_if_less(code, 1) & mask_if_less(0, magnitude) & 1U);
}

/// Rounds to bf16 with 16 random bits. Infinity stays, as do NaN and bf16's own numbers.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint16_t round_momentum16(float m,
                                                                       std::uint32_t random) {
  return static_cast<std::uint16_t>((bits_of_float(m) + (random >> 16)) >> 16);
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint16_t round_variance16(float v,
                                                                       std::uint32_t random) {
  std::uint32_t const bits = bits_of_float(v);
  return static_cast<std::uint16_t>(not_zero((bits + (random & 0xFFFFU)) >> 16, bits));
}

// In 8 bits a number is a code times its block's scale, a power of two, so that neither the product nor the quotient
// rounds. Codes are small floats with three bits of significand, and subnormals: of m a sign and 4 bits of exponent, from 2^-17
// to 1.875; of v 5 bits of exponent, from 2^-33 to 1.875, twice as many powers, as v is a square: where m is lost in the
// block's largest, sqrt(v) is too.

/// What tells codes of m and of v apart.
struct CodeFormat {
  std::uint32_t smallest_power;  ///< biased exponent of the smallest number that is not subnormal
  std::uint32_t largest_code;    ///< of a magnitude
  std::uint32_t smallest_scale;  ///< biased exponent; code 1 is a normal float with it
};
constexpr CodeFormat momentum_codes{.smallest_power = 127 - 14, .largest_code = 127, .smallest_scale = 18};
constexpr CodeFormat variance_codes{.smallest_power = 127 - 30, .largest_code = 255, .smallest_scale = 34};

constexpr std::uint32_t infinity_bits = 0x7F800000U;
constexpr std::uint32_t nan_bits = 0x7FC00000U;

/// A block's scale, and its reciprocal. Zero for a block of zeros, NaN for one with infinity or NaN, so
/// that the whole block is NaN in the next step.
struct BlockScale {
  float scale, inverse;
};
/// Of the largest bits of a magnitude: a power of two that is at most 1 / 1.875 and at least half of it, within
/// 2^126; beyond 1.875 * 2^126 numbers become that.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline BlockScale scale_of(std::uint32_t largest,
                                                            CodeFormat format) {
  if (largest == 0) {
    return {0.0F, 0.0F};
  }
  if (largest >= infinity_bits) {
    return {float_of_bits(nan_bits), 0.0F};
  }
  std::uint32_t power = (largest + 0xFFFFFU) >> 23;
  power = power < format.smallest_scale ? format.smallest_scale : power;
  power = power > 253 ? 253 : power;
  return {float_of_bits(power << 23), float_of_bits((254 - power) << 23)};
}

/// The code of a magnitude that is divided by its scale; `random`: 20 bits.
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint32_t encode(float scaled, std::uint32_t random,
                                                             CodeFormat format) {
  // Below the smallest power it is added, so that a subnormal's last place is where the others' are.
  std::uint32_t const smallest = format.smallest_power << 23;
  std::uint32_t const is_small = mask_if_less(bits_of_float(scaled), smallest);
  std::uint32_t const bits = bits_of_float(scaled + float_of_bits(is_small & smallest));
  std::uint32_t const code =
      ((bits + random) >> 20) - ((format.smallest_power - 1) << 3) - (is_small & 8U);
  return code < format.largest_code ? code : format.largest_code;
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline float decode(std::uint32_t code, CodeFormat format) {
  std::uint32_t const is_small = mask_if_less(code, 8);
  std::uint32_t const bits = (code + ((format.smallest_power - 1) << 3) + (is_small & 8U)) << 20;
  return float_of_bits(bits) - float_of_bits(is_small & (format.smallest_power << 23));
}

[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint8_t round_momentum8(float m, float inverse,
                                                                     std::uint32_t random) {
  std::uint32_t const bits = bits_of_float(m);
  float const scaled = float_of_bits(bits & 0x7FFFFFFFU) * inverse;
  // 16 bits and half of what they leave open.
  std::uint32_t const code = encode(scaled, ((random >> 12) & 0xFFFF0U) | 8U, momentum_codes);
  return static_cast<std::uint8_t>(((bits >> 24) & 0x80U) | code);
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline float momentum_of(std::uint8_t code, float scale) {
  float const magnitude = decode(code & 0x7FU, momentum_codes);
  return float_of_bits(bits_of_float(magnitude) | (std::uint32_t{code} & 0x80U) << 24) * scale;
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint8_t round_variance8(float v, float inverse,
                                                                     std::uint32_t random) {
  std::uint32_t const code = encode(v * inverse, ((random & 0xFFFFU) << 4) | 8U, variance_codes);
  return static_cast<std::uint8_t>(not_zero(code, bits_of_float(v)));
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline float variance_of(std::uint8_t code, float scale) {
  return decode(code, variance_codes) * scale;
}

// A parameter as its bf16 working copy and the 16 bits that this leaves: p's bits = copy * 2^16 + rest, with the rest as a
// signed number. So the copy is p rounded to nearest, ties away from zero; beyond the largest bf16 it is infinite.

[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline bfloat16 upper_half(float p) {
  return {static_cast<std::uint16_t>((bits_of_float(p) + 0x8000U) >> 16)};
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline std::uint16_t lower_half(float p) {
  return static_cast<std::uint16_t>(bits_of_float(p));
}
[[gnu::always_inline]] OFFSTAGE_ON_DEVICE constexpr inline float join(bfloat16 upper, std::uint16_t lower) {
  std::uint32_t const rest = ((std::uint32_t{lower} ^ 0x8000U) - 0x8000U);
  return float_of_bits((std::uint32_t{upper.bits} << 16) + rest);
}

}  // namespace offstage::kernels

#undef OFFSTAGE_ON_DEVICE
