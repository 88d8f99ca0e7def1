#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "platform/aio/file.hpp"
#include "tiers/storage_path.hpp"

namespace offstage::tiers {

/// Moves an extent of `size` bytes at `offset` of `file`, in pieces of path_hold_bytes.
///
/// Memory:  `memory` and `offset` are aligned to aio::direct_alignment; `memory` has the size rounded
///          up to it, and all of that moves.
/// Returns: XXH3-64 of the `size` bytes; 0 if not `checksummed`.
/// Errors:  IoError of the path.
std::uint64_t read_extent(StoragePath& path, aio::File const& file, std::span<std::byte> memory,
                          Bytes size, Bytes offset, bool checksummed);
std::uint64_t write_extent(StoragePath& path, aio::File const& file,
                           std::span<std::byte const> memory, Bytes size, Bytes offset,
                           bool checksummed);

}  // namespace offstage::tiers
