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
#include "tiers/traffic.hpp"

namespace offstage::tiers {

/// Space of a file of slots on one path, this rank.
struct PathSpace {
  std::int64_t slots{};
  Bytes slot_bytes{};
};

/// A given extent comes with the XXH3-64 of so many bytes at a time.
constexpr Bytes checksum_block_bytes = 16 * KiB;

/// An extent in a file that the tiers gave away.
struct GivenExtent {
  Bytes offset{};
  Bytes file_bytes{};
  std::vector<std::uint64_t> checksums;  ///< as of what was written, of each block of the extent
};

/// Takes bytes of an extent and where in it they begin.
using TakePiece = std::function<void(std::span<std::byte const>, Bytes)>;

/// Holds the extents of one rank.
///
/// Trials:  committing a lease on trial creates a tentative version. The version before is kept
///          until accept_trials() drops it or revert_trials() restores it. Meanwhile the tentative
///          version is the current one: fetch gives it, and a further commit replaces it.
/// Holds:   hold() keeps the versions that are current at that moment and lie in storage, until
///          release(). read_held() reads them. Leases, commits and trials go on as without it.
/// Threads: any number may hold leases of different keys. A key has one lease at a time; a second
///          fetch of it waits for the first to end.
class Tiers {
 public:
  virtual ~Tiers() = default;
  /// Leases a key's current version. Blocks until a buffer is free and the bytes are there, with
  /// their checksum verified.
  /// Errors: IoError naming path, offset and key if the only copy cannot be read or is damaged.
  [[nodiscard]] virtual Lease fetch(Key key) = 0;
  /// The same as fetch, but neither traffic() nor the paths count it. It is for readers that are no
  /// part of a step, such as saves.
  [[nodiscard]] virtual Lease fetch_aside(Key key) { return fetch(key); }
  /// Leases a key whose present bytes do not matter. Nothing is read; the bytes are arbitrary.
  [[nodiscard]] virtual Lease create(Key key) = 0;
  /// Returns whether a thread that holds the lease of `held`, and no other, may ask for `wanted`:
  /// there are buffers for both.
  [[nodiscard]] virtual bool fits_beside(Key /*held*/, Key /*wanted*/) const { return false; }
  /// Leases a key's current version for a tentative one. Returns nothing if there is no spare for a
  /// second version, or if the key has two already. Then it waits only for another lease of the
  /// key.
  [[nodiscard]] virtual std::optional<Lease> fetch_on_trial(Key /*key*/) { return std::nullopt; }
  /// Returns whether fetch_on_trial would find a spare for the key now. Waits for nothing.
  [[nodiscard]] virtual bool has_spare(Key /*key*/) const { return false; }
  /// Drops the versions before: tentative versions stay. Leases on trial that are held or asked for
  /// are as any other from now on. Waits for nothing.
  virtual void accept_trials() {}
  /// Restores the versions before, with their old bytes, and drops tentative ones. Returns their
  /// keys. The caller makes sure that no lease on trial, nor of a key on trial, is held or asked
  /// for. Waits for writes under way.
  virtual std::vector<Key> revert_trials() { return {}; }
  /// Begins a new pass over the keys (an update, a round of gradients); see Evict::farthest. No
  /// lease is held.
  virtual void begin_pass() {}
  /// Returns whether a fetch of the key would find it in host memory now.
  [[nodiscard]] virtual bool in_memory(Key /*key*/) const { return true; }
  /// Gives the file in which a key's current version lies alone a second name, `name`, and makes
  /// its bytes durable. The bytes are not read. The owner of the name may keep it: the tiers never
  /// write that file again. Returns nothing if the version lies in host memory, on a path whose
  /// slots are not kept, or in a file that cannot have that name. A warning says the last once for
  /// each path, unless the name is on another file system. Waits for a lease of the key; the key
  /// must not be on trial.
  /// Errors: IoError: a failed fdatasync.
  [[nodiscard]] virtual std::optional<GivenExtent> give(Key /*key*/, std::string const& /*name*/) {
    return std::nullopt;
  }
  /// Holds each current version that lies in storage; is_held() shows which. Holds none without
  /// slots for that (VirtualSettings::holds). The caller makes sure that nothing is held or on
  /// trial before. Waits for nothing.
  virtual void hold() {}
  [[nodiscard]] virtual bool is_held(Key /*key*/) const { return false; }
  /// Reads a held version through `memory`, which has whole blocks of checksums. Calls take(bytes,
  /// offset) with each piece, and begins again with the first one if a piece is damaged.
  /// `lets_pass`: as StoragePath::read. Errors: as fetch.
  virtual void read_held(Key key, std::span<std::byte> memory, TakePiece const& take,
                         LetsPass const& lets_pass);
  /// The path on which a held version lies; null where the tiers have no paths.
  [[nodiscard]] virtual StoragePath const* path_of_held(Key /*key*/) const { return nullptr; }
  /// Releases a held version; no effect if none is held. The caller does not read it meanwhile.
  virtual void release(Key /*key*/) noexcept {}
  [[nodiscard]] virtual Traffic traffic() const = 0;
  [[nodiscard]] virtual Residence residence() const { return {}; }
  /// In the order of the configuration, as allocated so far.
  [[nodiscard]] virtual std::vector<PathSpace> space() const { return {}; }
  /// Host memory that the tiers take, all of it allocated at construction.
  [[nodiscard]] virtual Bytes host_bytes() const = 0;

 protected:
  friend class Lease;
  virtual void commit(Key key) = 0;
  virtual void discard(Key key, bool touched) noexcept = 0;
};

}  // namespace offstage::tiers
