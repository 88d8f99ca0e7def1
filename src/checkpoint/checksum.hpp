#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/chunk.hpp"
#include "base/units.hpp"

namespace offstage::checkpoint {

/// Bytes that share a checksum: a chunk of FP32 numbers.
constexpr Bytes block_bytes = 4 * chunk_elements;

/// XXH3-64.
[[nodiscard]] std::uint64_t checksum_of(std::span<std::byte const> bytes) noexcept;
[[nodiscard]] std::uint64_t checksum_of(std::string_view text) noexcept;

/// XXH3-64 of each block of `bytes`, one for each of `checksums`; the last block may be short.
/// Threads: OpenMP.
void checksum_blocks(std::span<std::byte const> bytes, std::span<std::uint64_t> checksums);

/// The first block whose checksum is another, if any. Threads: OpenMP.
[[nodiscard]] std::optional<std::int64_t> first_mismatch(std::span<std::byte const> bytes,
                                                         std::span<std::uint64_t const> checksums);

/// Sixteen hexadecimal digits, and back; nullopt for anything else.
[[nodiscard]] std::string to_hex(std::uint64_t checksum);
[[nodiscard]] std::optional<std::uint64_t> parse_hex(std::string_view text) noexcept;

}  // namespace offstage::checkpoint
