#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "device/device.hpp"
#include "plan/extent_cache.hpp"
#include "plan/split.hpp"
#include "platform/trace/trace.hpp"
#include "tiers/kept_files.hpp"
#include "tiers/storage_path.hpp"
#include "tiers/tiers.hpp"
#include "tiers/verify.hpp"

namespace offstage::tiers {

using plan::Evict;

struct VirtualSettings {
  std::shared_ptr<PathSet> paths;  ///< null or empty: everything in host memory
  std::string spill;               ///< name of the spill directory in each path; see spill_name
  int buffers = 3;  ///< leases of extents that are not cached, at a time: fetched, updated, flushed
  /// Extents that stay in host memory beside those; as many as there are: no storage is used.
  std::int64_t cached = 0;
  /// Extents that may have two versions on trial: so many with the version before in a slot ...
  std::int64_t spare_slots = 0;
  /// ... and so many with that in host memory, in a buffer beside all others.
  std::int64_t spare_buffers = 0;
  bool holds = false;  ///< slots for a held version of each extent that is not cached
  Evict evict = Evict::farthest;
  Verify verify = Verify::always;
  plan::SplitPolicy split;
  plan::PathSharer sharer;                      ///< this rank among those of its node
  std::shared_ptr<KeptFileShape const> kept{};  ///< on persistent paths; null: none is persistent
  std::shared_ptr<KeptFileShape const> kept_nearby{};  ///< see SlotDemand
  trace::Trace* trace{};
  device::Device* device{};  ///< device that copies from and to the extents by itself; null: none
  /// Name of what the extents hold, in messages and in the trace: rows "state buffer N" with reads,
  /// writes and copies of extents.
  std::string name = "state";
};

/// The virtual tier: extents in host memory and in files of slots on any number of storage paths,
/// copy-on-write. Source: MLP sections 3.2 and 3.3.
///
/// Cache:   a commit makes the lease's buffer the current version, in host memory, and frees the
///          extent's slot. If more than `cached` extents are in host memory, the same call writes
///          one of them to storage (Evict says which) and returns when it is written. So an extent
///          that stays is neither written nor read, and every miss costs one read and one write.
/// Split:   an extent is written to the path that plan::next_path names, by the paths' present
///          rates and what each holds: when the split moves, extents migrate as they are flushed.
/// Lease:   a lease of a cached extent is the extent itself. If the holder changes it and does not
///          commit, the only version is torn: the next fetch throws PreconditionError. (Only a
///          failing run does that.) A lease of an extent that came from storage leaves its version
///          there until it commits.
/// Trials:  a lease on trial of a cached extent is a copy in a buffer of its own, for which it
///          waits as a miss does. If it ends without commit, nothing is torn. The version before
///          stays where it lies, in a buffer or in a slot. The tentative version is cached, and may
///          have to leave, as any other. A revert puts versions that were cached back into their
///          old places, but does not bring back extents that had to leave for trials. So the cache
///          may have fewer than `cached` extents then, or more, which the next commits write.
/// Memory:  buffers for `cached` extents, for `buffers` leases and for spare_buffers versions, each
///          as large as the largest extent. If that is enough for all extents and there are no
///          spare ones, each extent has one buffer of its own size.
/// Files:   one per path, created 0600 in a 0700 directory, unlinked (directory too) before this
///          returns, allocated once for this rank's share, of spare_slots too, and `buffers` slots
///          more; a path that takes over extents of another grows by a few slots at a time, if it
///          has the room. Slots are aligned to 4096 bytes and as large as the largest extent. No
///          file if all stays in memory. On a persistent path with `kept`, and on others near
///          `kept_nearby`, every slot has a file of its own: see KeptFiles and give. Write: a free
///          slot, then the table entry (path, slot, version, XXH3-64).
/// Faults:  a write that fails leaves its path out, for all processes of the node and with one
///          warning, and goes to another; if none is left, commit throws IoError and the extent
///          stays in memory, beside the version before if it is on trial; a fetch that no buffer is
///          left for then throws it too. A read is tried three times (and by aio::Engine); a
///          failure or a wrong checksum after that has lost the only copy: IoError.
/// Locks:   no lock and no path is held while waiting for a buffer or another lease; a path is held
///          for one transfer of at most path_turn_bytes.
/// Errors:  construction: IoError: a directory is missing (says that it must exist), not writable
///          or without the space, naming what is needed and what is free; PreconditionError: no
///          path and `cached` below the number of extents.
[[nodiscard]] std::unique_ptr<Tiers> make_virtual_tiers(std::vector<Bytes> const& extent_bytes,
                                                        VirtualSettings const& settings);

}  // namespace offstage::tiers
