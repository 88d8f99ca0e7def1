#include "base/random.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

namespace offstage {

std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t stream,
                                    std::uint64_t counter) noexcept {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  std::array<std::uint32_t, 4> c{
      static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
      static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
  for (int round = 0; round < 10; ++round) {
    std::uint64_t const a = std::uint64_t{0xD2511F53U} * c[0];
    std::uint64_t const b = std::uint64_t{0xCD9E8D57U} * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c;
}

namespace {

/// The normal numbers of elements 4 quad to 4 quad + 3.
std::array<float, 4> four_normals(std::uint64_t seed, std::uint64_t stream,
                                  std::uint64_t quad) noexcept {
  auto const words = philox(seed, stream, quad);
  std::array<float, 4> numbers{};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    // In (0, 1] and [0, 1): the logarithm never sees zero.
    double const u = (static_cast<double>(words[pair]) + 1.0) * 0x1p-32;
    double const angle = 2.0 * std::numbers::pi * static_cast<double>(words[pair + 1]) * 0x1p-32;
    double const radius = std::sqrt(-2.0 * std::log(u));
    numbers[pair] = static_cast<float>(radius * std::cos(angle));
    numbers[pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return numbers;
}

}  // namespace

float normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) noexcept {
  return four_normals(seed, stream, index / 4)[index % 4];
}

void normals(std::uint64_t seed, std::uint64_t stream, std::uint64_t first,
             std::span<float> out) noexcept {
  std::uint64_t const end = first + out.size();
  for (std::uint64_t quad = first / 4; 4 * quad < end; ++quad) {
    auto const numbers = four_normals(seed, stream, quad);
    for (std::uint64_t i = std::max(first, 4 * quad); i < std::min(end, 4 * quad + 4); ++i) {
      out[i - first] = numbers[i % 4];
    }
  }
}

std::uint64_t shuffled(std::uint64_t index, std::uint64_t size, std::uint64_t key,
                       std::uint64_t round) noexcept {
  if (size < 2) {
    return index;
  }
  auto const half_bits = (static_cast<int>(std::bit_width(size - 1)) + 1) / 2;
  std::uint64_t const mask = (std::uint64_t{1} << half_bits) - 1;
  do {
    std::uint64_t left = index >> half_bits;
    std::uint64_t right = index & mask;
    for (std::uint64_t r = 0; r < 6; ++r) {
      std::uint64_t const next = left ^ (philox(key, round * 8 + r, right)[0] & mask);
      left = right;
      right = next;
    }
    index = (left << half_bits) | right;
  } while (index >= size);
  return index;
}

}  // namespace offstage
