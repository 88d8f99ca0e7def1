#pragma once

#include <cstdint>
#include <type_traits>

namespace offstage {

/// Number type of working copy, activations and gradients. The state is always fp32.
enum class DType { fp32, bf16 };

/// A bfloat16, as bits: the upper half of a float.
struct bfloat16 {
  std::uint16_t bits{};
  friend constexpr bool operator==(bfloat16, bfloat16) = default;
};
static_assert(sizeof(bfloat16) == 2 && std::is_trivially_copyable_v<bfloat16>);

constexpr std::uint16_t bf16_canonical_nan = 0x7FC0;

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

/// Reads an element as the number that arithmetic uses: float for float and bfloat16, double for
/// double (the FP64 reference).
[[gnu::always_inline]] constexpr inline float load(float value) {
  return value;
}
[[gnu::always_inline]] constexpr inline float load(bfloat16 value) {
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
  } else {
    return static_cast<T>(value);
  }
}

/// The type that sums over elements of T use: double for double, else float.
template <class T>
using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
[[nodiscard]] constexpr DType dtype_of() {
  return std::is_same_v<T, bfloat16> ? DType::bf16 : DType::fp32;
}
[[nodiscard]] constexpr char const* name_of(DType type) {
  return type == DType::fp32 ? "fp32" : "bf16";
}
[[nodiscard]] constexpr std::int64_t bytes_of(DType type) {
  return type == DType::fp32 ? 4 : 2;
}

}  // namespace offstage
