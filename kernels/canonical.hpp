#pragma once

#include <cstdint>

namespace offstage::kernels {

/// `value`, with 0x7FC00000 for every NaN: CPUs and GPUs disagree about payloads and signs of NaNs.
/// Always inlined, like to_bf16 (base/dtype.hpp).
[[gnu::always_inline]] constexpr inline float canonical(float value) {
  auto const bits = __builtin_bit_cast(std::uint32_t, value);
  bool const is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return __builtin_bit_cast(float, is_nan ? 0x7FC00000U : bits);
}

}  // namespace offstage::kernels
