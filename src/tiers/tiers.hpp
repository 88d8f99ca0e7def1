#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "platform/aio/engine.hpp"

namespace offstage::tiers {

/// Names an extent: 0 .. n - 1, opaque here (the update uses the subgroup's index).
using Key = std::int64_t;

class Tiers;

/// The only door to offloaded bytes: verified, and this thread's alone until it ends.
///
/// Ends:    commit() makes the bytes the key's new version; destruction without commit keeps the
///          version before.
/// Errors:  commit throws IoError; a deferred error surfaces there, never in the destructor.
class Lease {
 public:
  Lease() noexcept = default;
  Lease(Tiers& owner, Key key, std::span<std::byte> bytes, std::int64_t ticket) noexcept
      : owner_{&owner}, key_{key}, bytes_{bytes}, ticket_{ticket} {}
  ~Lease() { discard(); }
  Lease(Lease const&) = delete;
  Lease& operator=(Lease const&) = delete;
  Lease(Lease&& other) noexcept
      : owner_{std::exchange(other.owner_, nullptr)},
        key_{other.key_},
        bytes_{std::exchange(other.bytes_, {})},
        ticket_{other.ticket_},
        touched_{other.touched_} {}
  Lease& operator=(Lease&&) = delete;

  [[nodiscard]] Key key() const noexcept { return key_; }
  /// The bytes, to read.
  [[nodiscard]] std::span<std::byte const> bytes() const noexcept { return bytes_; }
  /// The bytes, to change.
  [[nodiscard]] std::span<std::byte> mutable_bytes() noexcept {
    touched_ = true;
    return bytes_;
  }
  /// Blocks until the new version is written and the table names it. Ends the lease.
  void commit();

 private:
  void discard() noexcept;

  Tiers* owner_{};
  Key key_{};
  std::span<std::byte> bytes_;
  std::int64_t ticket_{};
  bool touched_{};
};

/// What went through the tiers since the start.
struct Traffic {
  Bytes read_bytes{};
  Bytes write_bytes{};
  Seconds read_seconds{};  ///< inside transfers, without waiting for the path
  Seconds write_seconds{};
};

/// Holds the extents of one rank.
///
/// Threads: any number may hold leases of different keys. A key has one lease at a time; a second
///          fetch of it waits for the first to end.
class Tiers {
 public:
  virtual ~Tiers() = default;
  /// A lease of a key's current version. Blocks until a buffer is free and the bytes are there,
  /// checksum verified.
  /// Errors: IoError naming path, offset and key if the only copy cannot be read or is damaged.
  [[nodiscard]] virtual Lease fetch(Key key) = 0;
  /// A lease of a key whose present bytes do not matter: zeroed, nothing is read.
  [[nodiscard]] virtual Lease create(Key key) = 0;
  [[nodiscard]] virtual Traffic traffic() const = 0;
  /// Host memory that the tiers take, all of it allocated at construction.
  [[nodiscard]] virtual Bytes host_bytes() const = 0;

 protected:
  friend class Lease;
  virtual void commit(Key key, std::int64_t ticket) = 0;
  virtual void discard(Key key, std::int64_t ticket, bool touched) noexcept = 0;
};

/// Extents that live in host memory. A lease is the extent itself: no copy. So a lease that was
/// changed and not committed has torn its extent; the next fetch of that key throws
/// PreconditionError. (Only a failing run does that.)
[[nodiscard]] std::unique_ptr<Tiers> make_host_tiers(std::vector<Bytes> const& extent_bytes);

struct StorageSettings {
  std::string path;   ///< an existing, writable directory
  std::string spill;  ///< name of the spill directory inside it; see spill_name
  int buffers = 3;    ///< extents in host memory at a time: fetched, updated, flushed; at least 1
  aio::EngineSettings engine;
  std::shared_ptr<aio::Kernel> kernel;  ///< null: libaio; a test brings a failing one
};

/// Extents that live in one file of slots in a directory, copy-on-write.
///
/// File:    created 0600 in a 0700 directory, allocated once, unlinked (directory too) before this
///          returns: nothing is left behind, however the process ends. Slots are aligned to 4096
///          bytes and as large as the largest extent; there are keys + buffers of them.
/// Write:   commit writes a free slot, then the table entry (slot, version, XXH3 checksum) changes,
///          then the old slot is free.
/// Order:   one transfer direction at a time uses the path, for at most 64 MiB; waiting threads are
///          served in order of arrival.
/// Read:    tried three times; a failure or a wrong checksum after that has lost the only copy.
/// Errors:  IoError: the directory is missing (says that it must exist), not writable or without
///          the space, naming what is needed and what is free.
[[nodiscard]] std::unique_ptr<Tiers> make_storage_tiers(std::vector<Bytes> const& extent_bytes,
                                                        StorageSettings const& settings);

}  // namespace offstage::tiers
