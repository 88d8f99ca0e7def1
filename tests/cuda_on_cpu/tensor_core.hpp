#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "base/dtype.hpp"
#include "cuda_on_cpu/executor.hpp"

/// What kernels/cuda/tensor_core.cuh says, by the PTX ISA's layout of fragments.
namespace offstage::kernels::cuda {
namespace {

template <class T>
T half_of(std::uint32_t packed, unsigned which) {
  return T{static_cast<std::uint16_t>(which == 0 ? packed & 0xFFFFU : packed >> 16)};
}

template <class T>
void multiply_add(float (&d)[4], std::uint32_t const (&a)[4], std::uint32_t const (&b)[2]) {
  // By register and half; as numbers, which every lane would make of every other's otherwise.
  struct Fragments {
    float a[4][2];
    float b[2][2];
  } mine{};
  for (unsigned half = 0; half < 2; ++half) {
    for (unsigned i = 0; i < 4; ++i) {
      mine.a[i][half] = load(half_of<T>(a[i], half));
    }
    for (unsigned i = 0; i < 2; ++i) {
      mine.b[i][half] = load(half_of<T>(b[i], half));
    }
  }
  auto const all = cuda_on_cpu::exchange(mine);
  auto const lane = cuda_on_cpu::here().lane;
  // Rows lane / 4 and 8 more of a, columns lane % 4 * 2 and the next of b; k = 8 * registers + 2 *
  // i + half.
  unsigned const of_a = lane / 4 * 4;
  unsigned const of_b = lane % 4 * 8;
  for (unsigned registers = 0; registers < 2; ++registers) {
    for (unsigned i = 0; i < 4; ++i) {
      auto const& rows = all[of_a + i].a;
      auto const& left = all[of_b + i].b[registers];
      auto const& right = all[of_b + 4 + i].b[registers];
      for (unsigned half = 0; half < 2; ++half) {
        float const upper = rows[2 * registers][half];
        float const lower = rows[2 * registers + 1][half];
        d[0] += upper * left[half];
        d[1] += upper * right[half];
        d[2] += lower * left[half];
        d[3] += lower * right[half];
      }
    }
  }
}

inline std::uint16_t element_at(void const* row, unsigned column) {
  std::uint16_t element{};
  std::memcpy(&element, static_cast<std::byte const*>(row) + 2 * column, sizeof element);
  return element;
}

inline void load_matrices(std::uint32_t (&r)[4], void const* row) {
  auto const rows = cuda_on_cpu::exchange(row);
  auto const lane = cuda_on_cpu::here().lane;
  for (unsigned i = 0; i < 4; ++i) {
    void const* const from = rows[8 * i + lane / 4];
    r[i] = std::uint32_t{element_at(from, lane % 4 * 2)} |
           std::uint32_t{element_at(from, lane % 4 * 2 + 1)} << 16;
  }
}

inline void load_matrices_transposed(std::uint32_t (&r)[4], void const* row) {
  auto const rows = cuda_on_cpu::exchange(row);
  auto const lane = cuda_on_cpu::here().lane;
  for (unsigned i = 0; i < 4; ++i) {
    r[i] = std::uint32_t{element_at(rows[8 * i + lane % 4 * 2], lane / 4)} |
           std::uint32_t{element_at(rows[8 * i + lane % 4 * 2 + 1], lane / 4)} << 16;
  }
}

template <class Words>
Words read_in_order(void const* from) {
  Words words{};
  std::memcpy(&words, from, sizeof words);
  return words;
}

inline void copy_async(void* to, void const* from, bool there) {
  cuda_on_cpu::copy_later(to, there ? from : nullptr, 16);
}
inline void copy_word_async(void* to, void const* from, bool there) {
  cuda_on_cpu::copy_later(to, there ? from : nullptr, 4);
}
inline void end_copies() {
  cuda_on_cpu::end_copies();
}
template <int pending>
void await_copies() {
  cuda_on_cpu::await_copies(pending);
}

template <class T>
std::uint32_t pack(float low, float high) {
  return std::uint32_t{store<T>(low).bits} | std::uint32_t{store<T>(high).bits} << 16;
}

inline float fast_exp2(float x) {
  return std::exp2(x);
}

}  // namespace
}  // namespace offstage::kernels::cuda
