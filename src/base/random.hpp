#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace offstage {

/// Philox 4x32-10: four 32-bit random words that depend on `key` and `counter` alone, so any rank
/// can compute any element of any stream.
/// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC '11.
[[nodiscard]] std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t stream,
                                                  std::uint64_t counter) noexcept;

/// A standard normal number, element `index` of stream `stream` of generator `seed` (Box-Muller on
/// 32-bit uniforms, computed in double and rounded once).
[[nodiscard]] float normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) noexcept;
/// The same of elements first, first + 1, ..., four from one call of the generator.
void normals(std::uint64_t seed, std::uint64_t stream, std::uint64_t first,
             std::span<float> out) noexcept;

/// A bijection on [0, size) that depends on `key` and `round` alone (a Feistel network, walked
/// until it lands inside): where index stands in a shuffle, without storing the shuffle.
[[nodiscard]] std::uint64_t shuffled(std::uint64_t index, std::uint64_t size, std::uint64_t key,
                                     std::uint64_t round) noexcept;

}  // namespace offstage
