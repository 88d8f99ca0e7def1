#include "tiers/extent_store.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "base/error.hpp"

namespace offstage::tiers {
namespace {

// A read that fails or delivers wrong bytes may have failed on the way only.
constexpr int read_attempts = 3;

/// XXH3-64 of bytes that come in pieces, or of the checksums of their blocks.
class Checksum {
 public:
  explicit Checksum(bool by_block) : by_block_{by_block} {
    if (state_ == nullptr) {
      throw std::bad_alloc{};
    }
    XXH3_64bits_reset(state_.get());
  }
  /// By block: all but the last piece are whole blocks.
  void add(std::span<std::byte const> bytes) {
    if (!by_block_) {
      XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
      return;
    }
    constexpr auto most = static_cast<std::size_t>(checksum_block_bytes);
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(most, bytes.size()))) {
      blocks_.push_back(XXH3_64bits(bytes.data(), std::min(most, bytes.size())));
    }
  }
  [[nodiscard]] std::uint64_t value() const {
    return by_block_ ? XXH3_64bits(blocks_.data(), blocks_.size() * sizeof(std::uint64_t))
                     : XXH3_64bits_digest(state_.get());
  }
  [[nodiscard]] std::vector<std::uint64_t> take_blocks() { return std::move(blocks_); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
  };
  bool by_block_;
  std::unique_ptr<XXH3_state_t, Free> state_{XXH3_createState()};
  std::vector<std::uint64_t> blocks_;
};
static_assert(path_turn_bytes % checksum_block_bytes == 0);

/// Calls `work` with each piece (padding included), the same without padding, and where it begins.
template <class Byte, class Work>
void for_each_piece(std::span<Byte> memory, Bytes size, Work const& work) {
  for (Bytes begin = 0; begin < size; begin += path_turn_bytes) {
    auto const rest = memory.subspan(static_cast<std::size_t>(begin));
    auto const piece = rest.first(std::min(rest.size(), static_cast<std::size_t>(path_turn_bytes)));
    work(piece, piece.first(std::min(piece.size(), static_cast<std::size_t>(size - begin))), begin);
  }
}

}  // namespace

ExtentStore::ExtentStore(std::shared_ptr<PathSet> paths, SlotDemand const& demand, Verify verify,
                         std::string name)
    : paths_{paths}, slots_{std::move(paths), demand}, verify_{verify}, name_{std::move(name)} {}

void ExtentStore::write(Version const& version, std::span<std::byte const> memory,
                        StoredExtent& line) {
  ++line.writes;
  while (auto const place = slots_.take()) {
    StoragePath& path = slots_.path(*place);
    aio::File const& file = slots_.file(*place);
    Bytes const offset = slots_.offset(*place);
    try {
      bool const kept = slots_.is_kept(*place);
      Checksum checksum{kept};
      for_each_piece(memory, version.size, [&](auto piece, auto content, Bytes begin) {
        if (kept || verifies(version.key, line)) {
          checksum.add(content);
        }
        path.write(file, piece, offset + begin);
      });
      line.place = *place;
      line.checksum = checksum.value();
      line.blocks = checksum.take_blocks();
      return;
    } catch (IoError const& error) {
      slots_.give_back(*place);
      path.leave_out(error.what());
    } catch (...) {
      slots_.give_back(*place);
      throw;
    }
  }
  throw IoError{fmt::format("{} extent {} was not written, no tiers.path is left that takes it{}",
                            name_, version.key, why_none_takes_it())};
}

std::string ExtentStore::why_none_takes_it() const {
  std::string text;
  for (auto const& path : *paths_) {
    std::string const cause = path->why_left_out();
    text += fmt::format("; {}: {}", path->settings().directory,
                        cause.empty() ? "cannot make more slots" : cause);
  }
  return text;
}

/// An error of whoever takes what is read, which says nothing about the extent.
struct NotTaken {
  std::exception_ptr cause;
};

/// Calls read(add) until the bytes that it gives to add are those that were written.
template <class Read>
void ExtentStore::read_verified(Version const& version, StoredExtent const& line,
                                Read const& read) {
  bool const verified = verifies(version.key, line);
  std::string cause;
  for (int attempt = 0; attempt < read_attempts; ++attempt) {
    try {
      Checksum checksum{!line.blocks.empty()};
      read([&](std::span<std::byte const> content) {
        if (verified) {
          checksum.add(content);
        }
      });
      if (!verified || checksum.value() == line.checksum) {
        return;
      }
      cause = fmt::format("its checksum is {:016x} where {:016x} was written", checksum.value(),
                          line.checksum);
    } catch (IoError const& error) {
      cause = error.what();
    }
  }
  throw IoError{
      fmt::format("{} extent {}, version {}, at offset {} of {} is lost: {}; resume the run from "
                  "its last checkpoint",
                  name_, version.key, version.number, slots_.offset(line.place),
                  slots_.file(line.place).path(), cause)};
}

void ExtentStore::read(Version const& version, std::span<std::byte> memory,
                       StoredExtent const& line) {
  StoragePath& path = slots_.path(line.place);
  aio::File const& file = slots_.file(line.place);
  Bytes const offset = slots_.offset(line.place);
  read_verified(version, line, [&](auto const& add) {
    for_each_piece(memory, version.size, [&](auto piece, auto content, Bytes begin) {
      path.read(file, piece, offset + begin);
      add(content);
    });
  });
}

void ExtentStore::read_through(Version const& version, std::span<std::byte> memory,
                               StoredExtent const& line, TakePiece const& take,
                               LetsPass const& lets_pass) {
  StoragePath& path = slots_.path(line.place);
  aio::File const& file = slots_.file(line.place);
  Bytes const offset = slots_.offset(line.place);
  auto const most = std::ssize(memory);
  require(most > 0 && most <= path_turn_bytes && most % checksum_block_bytes == 0,
          "ExtentStore: an extent is read through whole blocks");
  auto const read_pieces = [&](auto const& add) {
    for (Bytes begin = 0; begin < version.size; begin += most) {
      Bytes const size = std::min(most, version.size - begin);
      path.read(file, memory.first(static_cast<std::size_t>(round_up(size, aio::direct_alignment))),
                offset + begin, lets_pass);
      std::span<std::byte const> const content = memory.first(static_cast<std::size_t>(size));
      add(content);
      try {
        take(content, begin);
      } catch (...) {
        throw NotTaken{std::current_exception()};
      }
    }
  };
  try {
    read_verified(version, line, read_pieces);
  } catch (NotTaken const& error) {
    std::rethrow_exception(error.cause);
  }
}

std::optional<GivenExtent> ExtentStore::give(StoredExtent const& line, std::string const& name) {
  if (!slots_.is_kept(line.place) || !slots_.may_give(line.place, name) ||
      !slots_.give(line.place, name)) {
    return std::nullopt;
  }
  return GivenExtent{slots_.offset(line.place), slots_.file(line.place).size(), line.blocks};
}

/// The write decides as the read will, so that a sample costs neither of them more than its share.
/// Every extent has its turn once in verify_sample writes.
bool ExtentStore::verifies(Key key, StoredExtent const& line) const {
  return verify_ == Verify::always ||
         (verify_ == Verify::sample && (key + line.writes) % verify_sample == 0);
}

}  // namespace offstage::tiers
