#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "tiers/lease.hpp"
#include "tiers/storage_path.hpp"

namespace offstage::tiers {

/// Traffic through the tiers since the start, of this process.
struct Traffic {
  /// In the order of the configuration. That of all tiers that share these paths.
  std::vector<PathTraffic> paths;
  std::int64_t hits{};      ///< fetches that found their extent in host memory
  std::int64_t misses{};    ///< fetches that read
  Bytes fetched_bytes{};    ///< bytes of extents, hits included
  Seconds fetch_seconds{};  ///< inside fetch, summed over threads, waiting included
  Seconds flush_seconds{};  ///< inside commit, likewise

  [[nodiscard]] Bytes read_bytes() const;
  [[nodiscard]] Bytes write_bytes() const;
};

/// Where the current versions are (MLP Figure 10), in bytes of extents. Versions before those on trial
/// are not counted.
struct Residence {
  Bytes device{};  ///< in device memory (DeviceTiers)
  Bytes host{};
  std::vector<Bytes> paths;
};

/// Space of a file of slots on one path, this rank.
struct PathSpace {
  std::int64_t slots{};
  Bytes slot_bytes{};
};

/// XXH3-64 of so many bytes at a time is what a shared extent comes with.
constexpr Bytes checksum_block_bytes = 16 * KiB;

/// An extent in a file that the tiers gave away.
struct SharedExtent {
  Bytes offset{};
  Bytes file_bytes{};
  std::vector<std::uint64_t> checksums;  ///< as of what was written, of each block of the extent
};

/// Takes bytes of an extent and where in it they begin.
using TakePiece = std::function<void(std::span<std::byte const>, Bytes)>;

/// Holds the extents of one rank.
///
/// Trials:  what the commit of a lease on trial makes current is on trial, until accept_trials or
///          revert_trials: the version before stays beside it, and current again is what a revert makes
///          it. All else takes the version on trial for what it is, the current one: fetch gives it,
///          commit replaces it, and the version before stays the one that it was.
/// Holds:   hold() keeps the versions that are current then and lie in storage, until release(): leases, commits and
///          trials go on as if it had not been called, and read_held gives the bytes of then.
/// Threads: any number may hold leases of different keys. A key has one lease at a time; a second
///          fetch of it waits for the first to end.
class Tiers {
 public:
  virtual ~Tiers() = default;
  /// A lease of a key's current version. Blocks until a buffer is free and the bytes are there,
  /// checksum verified.
  /// Errors: IoError naming path, offset and key if the only copy cannot be read or is damaged.
  [[nodiscard]] virtual Lease fetch(Key key) = 0;
  /// The same as fetch, for a reader beside those whose traffic() it is: neither traffic() nor the
  /// paths count it.
  [[nodiscard]] virtual Lease fetch_aside(Key key) { return fetch(key); }
  /// A lease of a key whose present bytes do not matter: nothing is read, the bytes are whatever they
  /// are.
  [[nodiscard]] virtual Lease create(Key key) = 0;
  /// Whether a thread that holds the lease of `held`, and no other, may ask for that of `wanted`: both have buffers.
  [[nodiscard]] virtual bool fits_beside(Key /*held*/, Key /*wanted*/) const { return false; }
  /// As fetch, but what its commit makes current is on trial. None if there is no spare for a second
  /// version, or if the key has two already: without waiting for anything but another lease of the key.
  [[nodiscard]] virtual std::optional<Lease> fetch_on_trial(Key /*key*/) { return std::nullopt; }
  /// Versions on trial stay, and the versions before are gone. Leases on trial that are held or asked for
  /// are as any other from now on. Waits for nothing.
  virtual void accept_trials() {}
  /// The versions before are current again, with their old bytes; those on trial are gone. Returns their
  /// keys. No lease on trial, nor of a key on trial, is held or asked for; others may be. Waits for what is
  /// being written.
  virtual std::vector<Key> revert_trials() { return {}; }
  /// A new pass over the keys begins (an update, a round of gradients): see Evict::farthest.
  /// No lease is held.
  virtual void begin_pass() {}
  /// Whether a fetch of the key would find it in host memory now.
  [[nodiscard]] virtual bool in_memory(Key /*key*/) const { return true; }
  /// Makes `name` a name of the file in which a key's current version lies alone, its bytes durable;
  /// they are not read. Whoever has the name may keep it: the tiers never write that file again. Empty
  /// if it lies in host memory or on a path whose slots are not kept, or cannot have that name (which a
  /// warning says unless the name is on another file system). Waits for a lease of the key; the key must not be on trial. Errors: IoError: a failed
  /// fdatasync.
  [[nodiscard]] virtual std::optional<SharedExtent> share(Key /*key*/,
                                                          std::string const& /*name*/) {
    return std::nullopt;
  }
  /// Holds each current version that lies in storage and shows by is_held() which. None where there are no slots
  /// for that (VirtualSettings::holds). Nothing is held or on trial. Waits for nothing.
  virtual void hold() {}
  [[nodiscard]] virtual bool is_held(Key /*key*/) const { return false; }
  /// Reads a held version through `memory`, whole blocks of checksums: calls take(bytes, offset)
  /// with each piece, from the first on again should what was read be damaged. `lets_pass`: as
  /// StoragePath::read. Errors: as fetch.
  virtual void read_held(Key key, std::span<std::byte> memory, TakePiece const& take,
                         LetsPass const& lets_pass);
  /// The path on which a held version lies; null where the tiers have no paths.
  [[nodiscard]] virtual StoragePath const* path_of_held(Key /*key*/) const { return nullptr; }
  /// The version is held no more; no effect if none is. Not while it is read.
  virtual void release(Key /*key*/) noexcept {}
  [[nodiscard]] virtual Traffic traffic() const = 0;
  [[nodiscard]] virtual Residence residence() const { return {}; }
  /// In the order of the configuration, as allocated so far.
  [[nodiscard]] virtual std::vector<PathSpace> space() const { return {}; }
  /// Host memory that the tiers take, all of it allocated at construction.
  [[nodiscard]] virtual Bytes host_bytes() const = 0;

 protected:
  friend class Lease;
  virtual void commit(Key key, std::int64_t ticket) = 0;
  virtual void discard(Key key, std::int64_t ticket, bool touched) noexcept = 0;
};

}  // namespace offstage::tiers
