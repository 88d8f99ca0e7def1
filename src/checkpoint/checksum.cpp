#include "checkpoint/checksum.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/text.hpp"

namespace offstage::checkpoint {
namespace {

constexpr std::int64_t worth_threads = 256;  // 4 MiB: a fifth of a millisecond on one core

std::uint64_t checksum_of_block(std::span<std::byte const> bytes, std::int64_t block) noexcept {
  Bytes const begin = block * block_bytes;
  return XXH3_64bits(bytes.data() + begin,
                     static_cast<std::size_t>(std::min(block_bytes, std::ssize(bytes) - begin)));
}

void require_one_per_block(Bytes bytes, std::int64_t checksums) {
  require(ceil_div(bytes, block_bytes) == checksums, "checkpoint: one checksum per block");
}

}  // namespace

std::uint64_t checksum_of(std::span<std::byte const> bytes) noexcept {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t checksum_of(std::string_view text) noexcept {
  return XXH3_64bits(text.data(), text.size());
}

void checksum_blocks(std::span<std::byte const> bytes, std::span<std::uint64_t> checksums) {
  require_one_per_block(std::ssize(bytes), std::ssize(checksums));
  auto const blocks = static_cast<std::int64_t>(checksums.size());
  std::uint64_t* const out = checksums.data();
#pragma omp parallel for schedule(static) if (blocks >= worth_threads)
  for (std::int64_t i = 0; i < blocks; ++i) {
    out[i] = checksum_of_block(bytes, i);
  }
}

std::optional<std::int64_t> first_mismatch(std::span<std::byte const> bytes,
                                           std::span<std::uint64_t const> checksums) {
  require_one_per_block(std::ssize(bytes), std::ssize(checksums));
  auto const blocks = static_cast<std::int64_t>(checksums.size());
  std::uint64_t const* const expected = checksums.data();
  std::int64_t first = blocks;
#pragma omp parallel for schedule(static) reduction(min : first) if (blocks >= worth_threads)
  for (std::int64_t i = 0; i < blocks; ++i) {
    if (checksum_of_block(bytes, i) != expected[i]) {
      first = std::min(first, i);
    }
  }
  return first == blocks ? std::nullopt : std::optional{first};
}

std::string to_hex(std::uint64_t checksum) {
  return fmt::format("{:016x}", checksum);
}

std::optional<std::uint64_t> parse_hex(std::string_view text) noexcept {
  return text.size() == 16 ? number_in<std::uint64_t>(text, 16) : std::nullopt;
}

}  // namespace offstage::checkpoint
