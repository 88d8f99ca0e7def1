#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "device/device.hpp"
#include "plan/split.hpp"
#include "platform/trace/trace.hpp"
#include "tiers/kept_files.hpp"
#include "tiers/storage_path.hpp"

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
  /// False of a lease that has ended, or was made of nothing.
  [[nodiscard]] bool is_held() const noexcept { return owner_ != nullptr; }
  /// The bytes, to read.
  [[nodiscard]] std::span<std::byte const> bytes() const noexcept { return bytes_; }
  /// The bytes, to change.
  [[nodiscard]] std::span<std::byte> mutable_bytes() noexcept {
    touched_ = true;
    return bytes_;
  }
  /// The bytes are the new version when this returns, and what had to leave host memory for it is
  /// written. Ends the lease, whatever is thrown.
  void commit();

 private:
  void discard() noexcept;

  Tiers* owner_{};
  Key key_{};
  std::span<std::byte> bytes_;
  std::int64_t ticket_{};
  bool touched_{};
};

/// What went through the tiers since the start, this process.
struct Traffic {
  /// In the order of the configuration. That of all tiers that share these paths.
  std::vector<PathTraffic> paths;
  std::int64_t hits{};      ///< fetches that found their extent in host memory
  std::int64_t misses{};    ///< fetches that read
  Bytes fetched_bytes{};    ///< of extents, hits included
  Seconds fetch_seconds{};  ///< inside fetch, summed over threads, waiting included
  Seconds flush_seconds{};  ///< inside commit, likewise

  [[nodiscard]] Bytes read_bytes() const;
  [[nodiscard]] Bytes write_bytes() const;
};

/// Where the current versions are (MLP Figure 10), in bytes of extents.
struct Residence {
  Bytes device{};  ///< in device memory (DeviceTiers)
  Bytes host{};
  std::vector<Bytes> paths;
};

/// What a file of slots takes on one path, this rank.
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
  /// A lease of a key whose present bytes do not matter: nothing is read, the bytes are whatever they
  /// are.
  [[nodiscard]] virtual Lease create(Key key) = 0;
  /// A new pass over the keys begins (an update, a round of gradients): see Evict::farthest.
  /// No lease is held.
  virtual void begin_pass() {}
  /// Whether a fetch of the key would find it in host memory now.
  [[nodiscard]] virtual bool in_memory(Key /*key*/) const { return true; }
  /// Makes `name` a name of the file in which a key's current version lies alone, its bytes durable;
  /// they are not read. Whoever has the name may keep it: the tiers never write that file again. Empty
  /// if it lies in host memory or on a path that is not persistent, or cannot have that name (which a
  /// warning says). Waits for a lease of the key. Errors: IoError: a failed fdatasync.
  [[nodiscard]] virtual std::optional<SharedExtent> share(Key /*key*/,
                                                          std::string const& /*name*/) {
    return std::nullopt;
  }
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

/// tiers.evict: which extent leaves host memory when a commit finds the cache full.
enum class Evict {
  /// The one that this pass needs no more (committed in it) and that was committed first: what the
  /// pass still needs stays, whatever the order. The committed extent itself if there is no other.
  farthest,
  oldest  ///< least recently committed, as the papers' systems do: ascending passes then thrash
};

/// tiers.verify: which fetches from storage compare the checksum.
enum class Verify { always, sample, off };
/// `sample` verifies one read in so many.
constexpr std::int64_t verify_sample = 16;

struct VirtualSettings {
  std::shared_ptr<PathSet> paths;  ///< null or empty: everything in host memory
  std::string spill;               ///< name of the spill directory in each path; see spill_name
  int buffers = 3;  ///< leases of extents that are not cached, at a time: fetched, updated, flushed
  /// Extents that stay in host memory beside those; as many as there are: no storage is used.
  std::int64_t cached = 0;
  Evict evict = Evict::farthest;
  Verify verify = Verify::always;
  plan::SplitPolicy split;
  plan::PathSharer sharer;                      ///< this rank among those of its node
  std::shared_ptr<KeptFileShape const> kept{};  ///< on persistent paths; null: none is persistent
  trace::Trace* trace{};
  device::Device* device{};  ///< that copies from and to the extents by itself; null: none
  /// Of what the extents hold, in messages and in the trace: rows "state buffer N" with reads and
  /// writes of extents.
  std::string name = "state";
};

/// The virtual tier: extents in host memory and in files of slots on any number of storage paths,
/// copy-on-write. Source: MLP sections 3.2 and 3.3.
///
/// Cache:   a commit makes the lease's buffer the current version, in host memory; the extent's slot
///          is free then. If more than `cached` extents are there, the same call writes one to storage
///          (Evict says which) and returns when that is done. So an extent that stays is neither
///          written nor read, and every miss costs one read and one write.
/// Split:   an extent is written to the path that plan::next_path names, by the paths' present rates
///          and what each holds: when the split moves, extents migrate as they are flushed.
/// Lease:   of a cached extent it is the extent itself. One that was changed and not committed has torn
///          its only version: the next fetch throws PreconditionError. (Only a failing run does that.)
///          A lease of an extent that came from storage leaves its version there until it commits.
/// Files:   one per path, created 0600 in a 0700 directory, unlinked (directory too) before this
///          returns, allocated once for this rank's share and `buffers` slots more; a path that takes
///          over extents of another grows by a few slots at a time, if it has the room. Slots are
///          aligned to 4096 bytes and as large as the largest extent. No file if all stays in memory.
///          On a persistent path with `kept` every slot has a file of its own: see KeptFiles and share.
///          Write: a free slot, then the table entry (path, slot, version, XXH3-64).
/// Faults:  a write that fails leaves its path out, for all processes of the node and with one warning,
///          and goes to another; if none is left, commit throws IoError and the extent stays in
///          memory; a fetch that no buffer is left
///          for then throws it too. A read is tried three times; a failure or a wrong checksum after that
///          has lost the only copy: IoError.
/// Locks:   no lock and no path is held while waiting for a buffer or another lease; a path is held
///          for one transfer of at most path_hold_bytes.
/// Errors:  construction: IoError: a directory is missing (says that it must exist), not writable or
///          without the space, naming what is needed and what is free; PreconditionError: no path and
///          `cached` below the number of extents.
[[nodiscard]] std::unique_ptr<Tiers> make_virtual_tiers(std::vector<Bytes> const& extent_bytes,
                                                        VirtualSettings const& settings);

/// The same with every extent in host memory.
[[nodiscard]] std::unique_ptr<Tiers> make_host_tiers(std::vector<Bytes> const& extent_bytes);

}  // namespace offstage::tiers
