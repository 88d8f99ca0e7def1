#include "parquet/unpack.hpp"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>

#include "parquet/damage.hpp"
#include "parquet/thrift.hpp"

namespace offstage::parquet {
namespace {

[[noreturn]] void fail_to_unpack() {
  throw Damage{"a page does not unpack"};
}

void unpack_gzip(std::span<std::byte const> packed, std::span<std::byte> out) {
  constexpr auto most = std::numeric_limits<uInt>::max();
  constexpr int gzip_or_zlib = 15 + 32;
  if (packed.size() > most || out.size() > most) {
    fail_to_unpack();
  }
  z_stream zlib{};
  // zlib does not write there.
  zlib.next_in = const_cast<Bytef*>(reinterpret_cast<Bytef const*>(packed.data()));
  zlib.avail_in = static_cast<uInt>(packed.size());
  zlib.next_out = reinterpret_cast<Bytef*>(out.data());
  zlib.avail_out = static_cast<uInt>(out.size());
  if (inflateInit2(&zlib, gzip_or_zlib) != Z_OK) {
    throw std::bad_alloc{};
  }
  int const code = inflate(&zlib, Z_FINISH);
  inflateEnd(&zlib);
  if (code != Z_STREAM_END || zlib.avail_out != 0) {
    fail_to_unpack();
  }
}

void unpack_zstd(std::span<std::byte const> packed, std::span<std::byte> out) {
  auto const made = ZSTD_decompress(out.data(), out.size(), packed.data(), packed.size());
  if (ZSTD_isError(made) != 0 || made != out.size()) {
    fail_to_unpack();
  }
}

std::size_t little_endian(std::span<std::byte const> bytes) {
  std::size_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    value |= std::to_integer<std::size_t>(bytes[i]) << (8 * i);
  }
  return value;
}

char const* name_of_codec(std::int64_t codec) {
  switch (codec) {
    case 3:
      return "LZO";
    case 4:
      return "Brotli";
    case 5:
    case 7:
      return "LZ4";
    default:
      return "an unknown codec";
  }
}

}  // namespace

void unpack_snappy(std::span<std::byte const> packed, std::span<std::byte> out) {
  enum Tag : std::uint8_t { literal, near_copy, copy, far_copy };
  Thrift in{packed};  // its numbers are varints, too
  if (in.varint() != out.size()) {
    fail_to_unpack();
  }
  std::size_t made = 0;
  while (made < out.size()) {
    auto const first = std::to_integer<std::size_t>(in.take(1).front());
    std::size_t length = (first >> 2U) + 1;
    std::size_t distance = 0;
    switch (static_cast<Tag>(first & 3U)) {
      case literal: {
        constexpr std::size_t longest_short = 60;
        if (length > longest_short) {
          length = little_endian(in.take(length - longest_short)) + 1;
        }
        auto const bytes = in.take(length);
        if (length > out.size() - made) {
          fail_to_unpack();
        }
        std::ranges::copy(bytes, out.begin() + static_cast<std::ptrdiff_t>(made));
        made += length;
        continue;
      }
      case near_copy:
        length = ((first >> 2U) & 7U) + 4;
        distance = (first >> 5U << 8U) | little_endian(in.take(1));
        break;
      case copy:
        distance = little_endian(in.take(2));
        break;
      case far_copy:
        distance = little_endian(in.take(4));
        break;
    }
    if (distance == 0 || distance > made || length > out.size() - made) {
      fail_to_unpack();
    }
    for (; length > 0; --length, ++made) {  // byte by byte: a copy may take what it makes
      out[made] = out[made - distance];
    }
  }
}

void unpack(std::int64_t codec, std::span<std::byte const> packed, std::span<std::byte> out) {
  enum Codec : std::uint8_t { none = 0, snappy = 1, gzip = 2, zstd = 6 };
  switch (codec) {
    case none:
    case snappy:
    case gzip:
    case zstd:
      break;
    default:
      throw Unread{fmt::format("is compressed by {}", name_of_codec(codec))};
  }
  if (out.empty()) {
    return;  // some writers have no bytes for that
  }
  switch (codec) {
    case none:
      if (packed.size() != out.size()) {
        fail_to_unpack();
      }
      std::ranges::copy(packed, out.begin());
      return;
    case snappy:
      unpack_snappy(packed, out);
      return;
    case gzip:
      unpack_gzip(packed, out);
      return;
    default:
      unpack_zstd(packed, out);
      return;
  }
}

}  // namespace offstage::parquet
