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

/// The XXH3-64 of the bytes or the text.
[[nodiscard]] std::uint64_t checksum_of(std::span<std::byte const> bytes) noexcept;
[[nodiscard]] std::uint64_t checksum_of(std::string_view text) noexcept;

/// Writes the XXH3-64 of each block of `bytes` to `checksums`, one for each block. The last block
/// may be short.
/// Threads: OpenMP.
void checksum_blocks(std::span<std::byte const> bytes, std::span<std::uint64_t> checksums);

/// Returns the first block whose checksum differs, if any does. Threads: OpenMP.
[[nodiscard]] std::optional<std::int64_t> first_mismatch(std::span<std::byte const> bytes,
                                                         std::span<std::uint64_t const> checksums);

/// Sixteen hexadecimal digits of a checksum, and the checksum of such digits; nullopt for anything
/// else.
[[nodiscard]] std::string to_hex(std::uint64_t checksum);
[[nodiscard]] std::optional<std::uint64_t> parse_hex(std::string_view text) noexcept;

}  // namespace offstage::checkpoint
