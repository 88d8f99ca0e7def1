#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "base/watch.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "tiers/path_lock.hpp"
#include "tiers/spill_file.hpp"
#include "tiers/tiers.hpp"

namespace offstage::tiers {
namespace {

constexpr Bytes path_hold_bytes = 64 * MiB;
// A read that fails or delivers wrong bytes may have failed on the way only.
constexpr int read_attempts = 3;

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

class StorageTiers final : public Tiers {
 public:
  StorageTiers(std::vector<Bytes> const& extent_bytes, StorageSettings const& settings);

  Lease fetch(Key key) override;
  Lease create(Key key) override;
  [[nodiscard]] Traffic traffic() const override;
  [[nodiscard]] Bytes host_bytes() const override { return std::ssize(buffers_) * slot_bytes_; }

 protected:
  void commit(Key key, std::int64_t ticket) override;
  void discard(Key key, std::int64_t ticket, bool /*touched*/) noexcept override {
    end_lease(key, ticket);
  }

 private:
  static constexpr std::int64_t no_slot = -1;

  /// A line of the table: where the current version lies.
  struct Entry {
    Bytes size{};
    std::int64_t slot = no_slot;
    std::int64_t version = 0;  ///< counts commits
    std::uint64_t checksum{};
    bool leased = false;
  };
  /// Memory for one extent and the engine of whoever holds it.
  struct Buffer {
    memory::HugeBuffer memory;
    std::unique_ptr<aio::Engine> engine;

    /// What one hold of the path transfers of an extent of `size` bytes, its padding included.
    [[nodiscard]] std::span<std::byte> piece(Bytes begin, Bytes size) const {
      Bytes const padded = round_up(size, aio::direct_alignment);
      return memory.bytes().subspan(
          static_cast<std::size_t>(begin),
          static_cast<std::size_t>(std::min(path_hold_bytes, padded - begin)));
    }
  };

  [[nodiscard]] Entry& entry_of(Key key) { return entries_[static_cast<std::size_t>(key)]; }
  [[nodiscard]] Buffer& buffer_of(std::int64_t ticket) {
    return buffers_[static_cast<std::size_t>(ticket)];
  }
  [[nodiscard]] Bytes offset_of(std::int64_t slot) const { return slot * slot_bytes_; }
  [[nodiscard]] Lease lease_of(Key key, std::int64_t ticket) {
    auto const size = static_cast<std::size_t>(entry_of(key).size);
    return {*this, key, buffer_of(ticket).memory.bytes().first(size), ticket};
  }

  std::int64_t begin_lease(Key key);
  void end_lease(Key key, std::int64_t ticket) noexcept;
  std::int64_t take_slot();
  void free_slot(std::int64_t slot);
  void read_verified(Key key, Buffer& buffer);
  std::uint64_t read(Buffer& buffer, Bytes size, Bytes offset);
  std::uint64_t write(Buffer& buffer, Bytes size, Bytes offset);

  Bytes slot_bytes_{};
  aio::File file_;
  PathLock path_;  ///< held around transfers only

  mutable std::mutex mutex_;  ///< guards all below, except the insides of a leased entry or buffer
  std::condition_variable changed_;
  std::vector<Entry> entries_;
  std::vector<Buffer> buffers_;
  std::vector<std::int64_t> free_buffers_;
  std::vector<std::int64_t> free_slots_;
  std::int64_t next_arrival_ = 0;
  std::int64_t serving_ = 0;
  Traffic traffic_;
};

StorageTiers::StorageTiers(std::vector<Bytes> const& extent_bytes,
                           StorageSettings const& settings) {
  require(settings.buffers >= 1, "StorageTiers: at least one buffer is needed");
  for (Bytes const size : extent_bytes) {
    require(size > 0, "StorageTiers: an extent must have bytes");
    entries_.push_back({size});
    slot_bytes_ = std::max(slot_bytes_, round_up(size, aio::direct_alignment));
  }
  if (entries_.empty()) {
    return;
  }
  std::int64_t const slots = std::ssize(entries_) + settings.buffers;
  file_ = make_spill_file(settings.path, settings.spill, slots * slot_bytes_);
  // The lowest slot is taken first, so that the first versions lie in order of creation.
  for (std::int64_t slot = slots - 1; slot >= 0; --slot) {
    free_slots_.push_back(slot);
  }
  auto const kernel = settings.kernel ? settings.kernel : aio::libaio_kernel();
  for (int i = 0; i < settings.buffers; ++i) {
    buffers_.push_back(
        {memory::HugeBuffer{slot_bytes_}, std::make_unique<aio::Engine>(settings.engine, kernel)});
    free_buffers_.push_back(i);
  }
}

/// Waits for key and buffer together, in order of arrival: a thread that waits holds neither, and
/// whoever holds the key has its buffer already.
std::int64_t StorageTiers::begin_lease(Key key) {
  require(key >= 0 && key < std::ssize(entries_), "StorageTiers: no such key");
  std::int64_t ticket{};
  {
    Waiting const waiting{"a buffer and the lease of extent", key};
    std::unique_lock lock{mutex_};
    std::int64_t const arrival = next_arrival_++;
    changed_.wait(lock, [&] {
      return arrival == serving_ && !free_buffers_.empty() && !entry_of(key).leased;
    });
    ++serving_;
    entry_of(key).leased = true;
    ticket = free_buffers_.back();
    free_buffers_.pop_back();
  }
  changed_.notify_all();
  return ticket;
}

void StorageTiers::end_lease(Key key, std::int64_t ticket) noexcept {
  {
    std::scoped_lock const lock{mutex_};
    entry_of(key).leased = false;
    free_buffers_.push_back(ticket);  // within the capacity it was built with
  }
  changed_.notify_all();
}

Lease StorageTiers::fetch(Key key) {
  Waiting const waiting{"the fetch of extent", key};
  std::int64_t const ticket = begin_lease(key);
  Lease lease = lease_of(key, ticket);  // ends if what follows throws
  require(entry_of(key).slot != no_slot, "StorageTiers: fetch of an extent that was never created");
  read_verified(key, buffer_of(ticket));
  return lease;
}

Lease StorageTiers::create(Key key) {
  Lease lease = lease_of(key, begin_lease(key));
  std::ranges::fill(lease.mutable_bytes(), std::byte{0});
  return lease;
}

void StorageTiers::commit(Key key, std::int64_t ticket) {
  Waiting const waiting{"the commit of extent", key};
  Lease const ending = lease_of(key, ticket);  // frees key and buffer on every way out
  Entry& entry = entry_of(key);
  std::int64_t slot = take_slot();
  std::uint64_t checksum{};
  try {
    checksum = write(buffer_of(ticket), entry.size, offset_of(slot));
  } catch (IoError const& error) {
    free_slot(slot);
    throw IoError{
        fmt::format("extent {} was not written at offset {} of {}: {}; version {} is intact", key,
                    offset_of(slot), file_.path(), error.what(), entry.version)};
  }
  std::swap(entry.slot, slot);
  entry.checksum = checksum;
  ++entry.version;
  if (slot != no_slot) {
    free_slot(slot);
  }
}

std::int64_t StorageTiers::take_slot() {
  std::scoped_lock const lock{mutex_};
  // One per key and one per buffer: whoever holds a buffer finds one.
  std::int64_t const slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void StorageTiers::free_slot(std::int64_t slot) {
  std::scoped_lock const lock{mutex_};
  free_slots_.push_back(slot);
}

void StorageTiers::read_verified(Key key, Buffer& buffer) {
  Entry const& entry = entry_of(key);
  Bytes const offset = offset_of(entry.slot);
  std::string cause;
  for (int attempt = 0; attempt < read_attempts; ++attempt) {
    try {
      std::uint64_t const found = read(buffer, entry.size, offset);
      if (found == entry.checksum) {
        return;
      }
      cause =
          fmt::format("its checksum is {:016x} where {:016x} was written", found, entry.checksum);
    } catch (IoError const& error) {
      cause = error.what();
    }
  }
  throw IoError{
      fmt::format("extent {}, version {}, at offset {} of {} is lost: {}; resume the run from its "
                  "last checkpoint",
                  key, entry.version, offset, file_.path(), cause)};
}

std::uint64_t StorageTiers::read(Buffer& buffer, Bytes size, Bytes offset) {
  Checksum checksum;
  for (Bytes begin = 0; begin < size; begin += path_hold_bytes) {
    std::span<std::byte> const piece = buffer.piece(begin, size);
    Seconds spent{};
    {
      std::scoped_lock const path{path_};
      Stopwatch const watch;
      buffer.engine->read(file_, piece, offset + begin);
      spent = watch.elapsed();
    }
    checksum.add(piece.first(std::min(piece.size(), static_cast<std::size_t>(size - begin))));
    std::scoped_lock const lock{mutex_};
    traffic_.read_bytes += std::ssize(piece);
    traffic_.read_seconds += spent;
  }
  return checksum.value();
}

std::uint64_t StorageTiers::write(Buffer& buffer, Bytes size, Bytes offset) {
  Checksum checksum;
  for (Bytes begin = 0; begin < size; begin += path_hold_bytes) {
    std::span<std::byte> const piece = buffer.piece(begin, size);
    checksum.add(piece.first(std::min(piece.size(), static_cast<std::size_t>(size - begin))));
    Seconds spent{};
    {
      std::scoped_lock const path{path_};
      Stopwatch const watch;
      buffer.engine->write(file_, piece, offset + begin);
      spent = watch.elapsed();
    }
    std::scoped_lock const lock{mutex_};
    traffic_.write_bytes += std::ssize(piece);
    traffic_.write_seconds += spent;
  }
  return checksum.value();
}

Traffic StorageTiers::traffic() const {
  std::scoped_lock const lock{mutex_};
  return traffic_;
}

}  // namespace

std::unique_ptr<Tiers> make_storage_tiers(std::vector<Bytes> const& extent_bytes,
                                          StorageSettings const& settings) {
  return std::make_unique<StorageTiers>(extent_bytes, settings);
}

}  // namespace offstage::tiers
