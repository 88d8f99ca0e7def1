#pragma once

#include <cstdint>
#include <type_traits>

#include "base/dtype.hpp"

namespace offstage::kernels {

/// `value`, with 0x7FC00000 for every NaN: CPUs and GPUs disagree about signs and payloads of NaNs.
/// Always inlined, as to_bf16 (base/dtype.hpp).
[[gnu::always_inline]] constexpr inline float canonical(float value) {
  auto const bits = __builtin_bit_cast(std::uint32_t, value);
  bool const is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return __builtin_bit_cast(float, is_nan ? 0x7FC00000U : bits);
}

/// Rounds to the element type, NaN in canonical form.
template <class T>
[[gnu::always_inline]] constexpr inline T store_canonical(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return canonical(value);
  } else {
    return store<T>(value);
  }
}

}  // namespace offstage::kernels
