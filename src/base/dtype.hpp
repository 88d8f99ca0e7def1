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

/// a < b ? if_less : otherwise, for differences that fit. Arithmetic alone: GCC 12 makes branches
/// of some comparisons, and loops with branches do not vectorise.
[[gnu::always_inline]] constexpr inline std::int32_t select_less(std::int32_t a, std::int32_t b,
                                                                 std::int32_t if_less,
                                                                 std::int32_t otherwise) {
  std::int32_t const less = (a - b) >> 31;  // all ones or zero
  return otherwise ^ (less & (if_less ^ otherwise));
}

[[gnu::always_inline]] constexpr inline float to_float(float16 value) {
  std::uint32_t const sign = (value.bits & 0x8000U) << 16;
  auto const magnitude = static_cast<std::int32_t>(value.bits & 0x7FFFU);
  // The exponent moves by 224, which makes that of infinity and NaN a float's, and back by 112. A
  // subnormal 0.m * 2^-14 has become 1.m * 2^-15: it is doubled and 2^-14 goes off. No subnormal
  // float, which is slow, comes up.
  float const moved = __builtin_bit_cast(float, (magnitude << 13) + 0x70000000) * 0x1p-112F;
  std::int32_t const is_small = (magnitude - 0x0400) >> 31;  // all ones or zero
  std::int32_t const doubled = __builtin_bit_cast(std::int32_t, moved) + (is_small & 0x00800000);
  float const number =
      __builtin_bit_cast(float, doubled) - __builtin_bit_cast(float, is_small & 0x38800000);
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(std::uint32_t, number));
}

/// Rounds to nearest even, beyond fp16_largest to infinity. Subnormals are kept; every NaN becomes
/// fp16_canonical_nan, so that CPU and GPU agree.
[[gnu::always_inline]] constexpr inline float16 to_fp16(float value) {
  constexpr std::int32_t smallest_normal = 0x38800000;  // 2^-14
  constexpr std::int32_t overflow = 0x47800000;         // 2^16
  auto const bits = __builtin_bit_cast(std::uint32_t, value);
  auto const magnitude = static_cast<std::int32_t>(bits & 0x7FFFFFFFU);
  std::int32_t const capped = select_less(magnitude, overflow, magnitude, overflow);
  std::int32_t const own_power = capped & 0x7F800000;
  std::int32_t const power = select_less(own_power, smallest_normal, smallest_normal, own_power);
  // A number 2^13 times as large as the power of two below the value has a last place as large as
  // the result's, so that the sum is rounded as the result must be. The result's significand, with
  // its leading one, is what the sum has in its last places; a carry moves on to the exponent.
  std::int32_t const aligner = power + (13 << 23);
  float const sum = __builtin_bit_cast(float, capped) + __builtin_bit_cast(float, aligner);
  std::int32_t const number =
      __builtin_bit_cast(std::int32_t, sum) - aligner + ((power - smallest_normal) >> 13);
  auto const rounded = static_cast<std::int32_t>((bits >> 16) & 0x8000U) | number;
  return {
      static_cast<std::uint16_t>(select_less(0x7F800000, magnitude, fp16_canonical_nan, rounded))};
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
/// work(T{}) for the type T that dtype_of makes `type` of.
template <class Work>
decltype(auto) with_type(DType type, Work&& work) {
  switch (type) {
    case DType::bf16:
      return work(bfloat16{});
    case DType::fp16:
      return work(float16{});
    case DType::fp32:
      break;
  }
  return work(float{});
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
