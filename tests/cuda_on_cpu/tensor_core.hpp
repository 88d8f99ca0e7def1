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
  for (unsigned i = 0; i < 4; ++i) {
    unsigned const row = lane / 4 + (i >= 2 ? 8 : 0);
    unsigned const column = lane % 4 * 2 + i % 2;
    float sum = d[i];
    for (unsigned k = 0; k < 16; ++k) {
      // Element (row, k) of a, (k, column) of b: which lane holds them, in which register and half.
      unsigned const of_a = row % 8 * 4 + k % 8 / 2;
      unsigned const register_a = (k >= 8 ? 2 : 0) + (row >= 8 ? 1 : 0);
      unsigned const of_b = column * 4 + k % 8 / 2;
      sum += all[of_a].a[register_a][k % 2] * all[of_b].b[k / 8][k % 2];
    }
    d[i] = sum;
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

inline void copy_async(void* to, void const* from, bool there) {
  cuda_on_cpu::copy_later(to, there ? from : nullptr);
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
