#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace offstage::parquet {

/// Unpacks a page with one of the codecs of a column chunk: none, Snappy, gzip or zstd. `out` has
/// the size of the unpacked page.
/// Errors: Damage if the bytes do not unpack to that size; Unread naming another codec.
void unpack(std::int64_t codec, std::span<std::byte const> packed, std::span<std::byte> out);

/// Unpacks Snappy's format. Own code, as it is shorter than what a further library would ask of
/// packages. Source: github.com/google/snappy/blob/main/format_description.txt.
/// Errors: Damage.
void unpack_snappy(std::span<std::byte const> packed, std::span<std::byte> out);

}  // namespace offstage::parquet
