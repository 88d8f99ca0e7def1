#include "tiers/extent_io.hpp"

#include <xxhash.h>

#include <algorithm>
#include <memory>

namespace offstage::tiers {
namespace {

/// XXH3-64 of bytes that come in pieces.
class Checksum {
 public:
  Checksum() { XXH3_64bits_reset(state_.get()); }
  void add(std::span<std::byte const> bytes) {
    XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
  }
  [[nodiscard]] std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_{XXH3_createState()};
};

/// Calls `work` with each piece (padding included), the same without padding, and where it begins.
template <class Byte, class Work>
void for_each_piece(std::span<Byte> memory, Bytes size, Work const& work) {
  for (Bytes begin = 0; begin < size; begin += path_hold_bytes) {
    auto const rest = memory.subspan(static_cast<std::size_t>(begin));
    auto const piece = rest.first(std::min(rest.size(), static_cast<std::size_t>(path_hold_bytes)));
    work(piece, piece.first(std::min(piece.size(), static_cast<std::size_t>(size - begin))), begin);
  }
}

}  // namespace

std::uint64_t read_extent(StoragePath& path, aio::File const& file, std::span<std::byte> memory,
                          Bytes size, Bytes offset, bool checksummed) {
  Checksum checksum;
  for_each_piece(memory, size, [&](auto piece, auto content, Bytes begin) {
    path.read(file, piece, offset + begin);
    if (checksummed) {
      checksum.add(content);
    }
  });
  return checksummed ? checksum.value() : 0;
}

std::uint64_t write_extent(StoragePath& path, aio::File const& file,
                           std::span<std::byte const> memory, Bytes size, Bytes offset,
                           bool checksummed) {
  Checksum checksum;
  for_each_piece(memory, size, [&](auto piece, auto content, Bytes begin) {
    if (checksummed) {
      checksum.add(content);
    }
    path.write(file, piece, offset + begin);
  });
  return checksummed ? checksum.value() : 0;
}

}  // namespace offstage::tiers
