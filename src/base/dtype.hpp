#pragma once

#include <cstdint>
#include <type_traits>

namespace offstage {

/// Number type of working copy, activations and gradients. The state is always fp32.
enum class DType { fp32, bf16, fp16 };

/// A bfloat16, as bits: the upper half of a float.
struct bfloat16 {
  std::uint16_t bits{};
  friend constexpr bool operator==(bfloat16, bfloat16) = default;
};
static_assert(sizeof(bfloat16) == 2 && std::is_trivially_copyable_v<bfloat16>);

constexpr std::uint16_t bf16_canonical_nan = 0x7FC0;

/// An IEEE 754 binary16, as bits.
struct float16 {
  std::uint16_t bits{};
  friend constexpr bool operator==(float16, float16) = default;
};
static_assert(sizeof(float16) == 2 && std::is_trivially_copyable_v<float16>);

constexpr std::uint16_t fp16_canonical_nan = 0x7E00;
constexpr float fp16_largest = 65504.0F;

// Always inlined, and without std::bit_cast: these two also stand in sources that are compiled for
// one instruction set, and an out-of-line copy from there could be linked into code that must run
// everywhere.
[[gnu::always_inline]] constexpr inline float to_float(bfloat16 value) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value.bits) << 16);
}

/// Rounds to nearest even. Subnormals are kept; every NaN becomes bf16_canonical_nan, so that CPU
/// and GPU agree.
[[gnu::always_inline]] constexpr inline bfloat16 to_bf16(float value) {
  auto const bits = __builtin_bit_cast(std::uint32_t, value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return {bf16_canonical_nan};
  }
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

[[gnu::always_inline]] constexpr inline float to_float(float16 value) {
  std::uint32_t const sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  std::uint32_t const magnitude = value.bits & 0x7FFFU;
  if (magnitude >= 0x7C00U) {  // infinity, or a NaN
    return __builtin_bit_cast(float, magnitude == 0x7C00U ? sign | 0x7F800000U : 0x7FC00000U);
  }
  // Exact: the exponent bias is moved by a multiplication, which also normalises subnormals.
  float const scaled = __builtin_bit_cast(float, magnitude << 13) * 0x1p112F;
  return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, scaled) | sign);
}

/// Rounds to nearest even, beyond fp16_largest to infinity. Subnormals are kept; every NaN becomes
/// fp16_canonical_nan, so that CPU and GPU agree.
[[gnu::always_inline]] constexpr inline float16 to_fp16(float value) {
  auto const bits = __builtin_bit_cast(std::uint32_t, value);
  std::uint32_t const magnitude = bits & 0x7FFFFFFFU;
  auto const sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  if (magnitude > 0x7F800000U) {
    return {fp16_canonical_nan};
  }
  if (magnitude >= 0x477FF000U) {  // 65520 and more
    return {static_cast<std::uint16_t>(sign | 0x7C00U)};
  }
  if (magnitude <
      0x38800000U) {  // below 2^-14: adding 0.5 aligns and rounds to a multiple of 2^-24
    float const aligned = __builtin_bit_cast(float, magnitude) + 0.5F;
    return {static_cast<std::uint16_t>(sign |
                                       (__builtin_bit_cast(std::uint32_t, aligned) - 0x3F000000U))};
  }
  std::uint32_t const rounded = magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13) & 1U);
  return {static_cast<std::uint16_t>(sign | (rounded >> 13))};
}

/// Reads an element as the number that arithmetic uses: float for float and the 16-bit types,
/// double for double (the FP64 reference).
[[gnu::always_inline]] constexpr inline float load(float value) {
  return value;
}
[[gnu::always_inline]] constexpr inline float load(bfloat16 value) {
  return to_float(value);
}
[[gnu::always_inline]] constexpr inline float load(float16 value) {
  return to_float(value);
}
[[gnu::always_inline]] constexpr inline double load(double value) {
  return value;
}

/// Rounds a number to the element type.
template <class T, class Real>
[[gnu::always_inline]] constexpr inline T store(Real value) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return to_bf16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, float16>) {
    return to_fp16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

/// The type that sums over elements of T use: double for double, else float.
template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
[[nodiscard]] constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return DType::bf16;
  } else if constexpr (std::is_same_v<T, float16>) {
    return DType::fp16;
  } else {
    return DType::fp32;
  }
}
[[nodiscard]] constexpr char const* name_of(DType type) {
  switch (type) {
    case DType::bf16:
      return "bf16";
    case DType::fp16:
      return "fp16";
    case DType::fp32:
      break;
  }
  return "fp32";
}
[[nodiscard]] constexpr std::int64_t bytes_of(DType type) {
  return type == DType::fp32 ? 4 : 2;
}

}  // namespace offstage
