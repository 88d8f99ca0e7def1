#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tiers/lease.hpp"
#include "tiers/slot_table.hpp"
#include "tiers/tiers.hpp"
#include "tiers/virtual_tiers.hpp"

namespace offstage::tiers {

/// One version of an extent.
struct Version {
  Key key{};
  std::int64_t number{};  ///< counts commits
  Bytes size{};
};

/// An extent's line of the table.
struct StoredExtent {
  Place place{};
  std::int64_t writes = 0;  ///< writes of the extent so far
  /// XXH3-64 of the size bytes, if this write was to be verified; of `blocks`, if there are any.
  std::uint64_t checksum{};
  std::vector<std::uint64_t> blocks;  ///< in a slot with a file of its own: see GivenExtent
};

/// Extents on storage paths: finds them a slot, writes, reads and verifies them.
///
/// Memory:  `memory` is aligned to aio::direct_alignment and has the version's size rounded up to
///          it; all of that moves, in pieces of path_turn_bytes.
/// Threads: any, for different keys; a line belongs to whoever has taken the extent.
class ExtentStore {
 public:
  /// `name`: what the extents hold, for messages.
  ExtentStore(std::shared_ptr<PathSet> paths, SlotDemand const& demand, Verify verify,
              std::string name);

  /// Writes the version to a free slot and then puts the line right. A path that fails is left out,
  /// and the next one tried. Errors: IoError if none is left; the line's slot says nothing then.
  void write(Version const& version, std::span<std::byte const> memory, StoredExtent& line);
  /// Errors: IoError if the only copy cannot be read or is damaged, after three attempts.
  void read(Version const& version, std::span<std::byte> memory, StoredExtent const& line);
  /// The same through `memory`, in pieces as large as that: see Tiers::read_held.
  void read_through(Version const& version, std::span<std::byte> memory, StoredExtent const& line,
                    TakePiece const& take, LetsPass const& lets_pass);
  [[nodiscard]] StoragePath const& path_of(StoredExtent const& line) {
    return slots_.path(line.place);
  }
  /// Nobody will read what lies there.
  void free(Place place) noexcept { slots_.give_back(place); }
  /// See Tiers::give; empty if the slot's file cannot be given away.
  [[nodiscard]] std::optional<GivenExtent> give(StoredExtent const& line, std::string const& name);

  [[nodiscard]] SlotTable const& slots() const noexcept { return slots_; }

 private:
  template <class Read>
  void read_verified(Version const& version, StoredExtent const& line, Read const& read);
  [[nodiscard]] bool verifies(Key key, StoredExtent const& line) const;
  [[nodiscard]] std::string why_none_takes_it() const;

  std::shared_ptr<PathSet> paths_;
  SlotTable slots_;
  Verify verify_;
  std::string name_;
};

}  // namespace offstage::tiers
