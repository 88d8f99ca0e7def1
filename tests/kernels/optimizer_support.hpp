#pragma once

#include <gtest/gtest.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <bit>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "base/dtype.hpp"
#include "base/random.hpp"
#include "kernels/simd_support.hpp"

namespace offstage::kernels {

/// Below, at and above the vectors, cache lines, blocks, chunks and pieces of the kernels.
constexpr std::size_t odd_lengths[] = {0,  1,  2,   7,   8,   15,  16,   17,   31,   32,    33,
                                       63, 64, 127, 128, 129, 255, 1000, 4095, 4097, 70'001};

enum class Values {
  ordinary,  ///< around 1
  finite,    ///< any magnitude, subnormal and huge ones too
  extreme,   ///< infinities and NaN among them
};

constexpr Values all_kinds[] = {Values::ordinary, Values::finite, Values::extreme};

/// Bits of a float that depend on the arguments alone.
inline std::uint32_t make_bits(Values kind, std::uint64_t stream, std::uint64_t index) {
  auto const words = philox(7, stream, index);
  std::uint32_t const sign = words[0] & 0x80000000U;
  std::uint32_t const mantissa = words[1] & 0x007FFFFFU;
  std::uint32_t const choice = words[2] % 64;
  if (kind == Values::extreme && choice < 2) {  // infinity; NaN, quiet and signalling
    return sign | 0x7F800000U | (choice == 0 ? 0U : mantissa);
  }
  if (kind != Values::ordinary && choice >= 2 && choice < 40) {
    std::uint32_t const largest = sign | 0x7F7F0000U | mantissa % 0x10000U;
    std::uint32_t const smallest_subnormal = sign | mantissa % 64U;
    std::uint32_t const subnormal = sign | mantissa;
    std::uint32_t const any_magnitude_up_to_2 = words[3] & 0xBFFFFFFFU;
    return choice < 4    ? sign
           : choice < 6  ? largest
           : choice < 8  ? smallest_subnormal
           : choice < 24 ? subnormal
                         : any_magnitude_up_to_2;
  }
  return std::bit_cast<std::uint32_t>(normal(11, stream, index));
}

/// Rounded, but for NaN, whose sign and payload are cut off a float's. Half of the numbers that
/// would be zero become subnormal.
inline float16 to_fp16_keeping_payload(std::uint32_t bits) {
  auto const value = std::bit_cast<float>(bits);
  auto const sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  if (value != value) {
    auto const payload = static_cast<std::uint16_t>((bits >> 13) & 0x03FFU);
    return {static_cast<std::uint16_t>(sign | 0x7C00U | (payload == 0 ? 1U : payload))};
  }
  float16 const rounded = to_fp16(value);
  if ((rounded.bits & 0x7FFFU) == 0 && bits % 2 == 1) {
    return {static_cast<std::uint16_t>(sign | ((bits >> 1) & 0x03FFU))};
  }
  return rounded;
}

template <class T>
std::vector<T> make_values(std::size_t count, Values kind, std::uint64_t stream) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t const bits = make_bits(kind, stream, i);
    if constexpr (std::is_same_v<T, float>) {
      values[i] = std::bit_cast<float>(bits);
    } else if constexpr (std::is_same_v<T, float16>) {
      values[i] = to_fp16_keeping_payload(bits);
    } else {
      values[i].bits = static_cast<std::uint16_t>(bits >> 16);  // not rounded: keeps NaN payloads
    }
  }
  return values;
}

template <class T>
auto bits_of(T value) {
  if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>) {
    return value.bits;
  } else if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<std::uint64_t>(value);
  } else {
    return std::bit_cast<std::uint32_t>(value);
  }
}

template <class T>
void expect_same_bits(std::vector<T> const& got, std::vector<T> const& expected, char const* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (bits_of(got[i]) != bits_of(expected[i])) {
      FAIL() << what << " at " << i << std::hex << ": bits " << bits_of(got[i]) << ", expected "
             << bits_of(expected[i]);
    }
  }
}

/// Calls work under `threads` OpenMP threads.
template <class Work>
void with_threads([[maybe_unused]] int threads, Work const& work) {
#ifdef _OPENMP
  int const before = omp_get_max_threads();
  omp_set_num_threads(threads);
  work();
  omp_set_num_threads(before);
#else
  work();
#endif
}

}  // namespace offstage::kernels
