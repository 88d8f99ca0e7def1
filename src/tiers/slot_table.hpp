#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "plan/split.hpp"
#include "platform/aio/file.hpp"
#include "tiers/kept_files.hpp"
#include "tiers/spill_file.hpp"
#include "tiers/storage_path.hpp"

namespace offstage::tiers {

/// A slot of one path's file.
struct Place {
  std::size_t path{};
  std::int64_t slot{};

  friend bool operator==(Place const&, Place const&) = default;
};

struct SlotDemand {
  std::string spill;       ///< name of the spill directory in each path
  Bytes slot_bytes{};      ///< a multiple of aio::direct_alignment
  std::int64_t extents{};  ///< versions that lie in slots at a time, on all paths together
  std::int64_t spare{};    ///< slots of each path beside its part of those
  plan::SplitPolicy split;
  plan::PathSharer sharer{};
  /// Shape of files on persistent paths; null: as the others.
  std::shared_ptr<KeptFileShape const> kept{};
  /// Files of slots on other paths near its directory; null: as the others.
  std::shared_ptr<KeptFileShape const> kept_nearby{};

  /// The form in which the slots of a path are kept; null: they have one file.
  [[nodiscard]] std::shared_ptr<KeptFileShape const> kept_on(PathSettings const& path) const;
};

/// Slots of each path that a table begins with: by the paths' present rates, its part of the
/// extents, and the spare ones.
[[nodiscard]] std::vector<std::int64_t> slots_at_first(PathSet const& paths,
                                                       SlotDemand const& demand);

/// The files of slots, one on each path, or one for each slot of it (KeptFiles), and which slots
/// are free.
///
/// Files:   see make_spill_file. A path's file has its part of the extents and the spare slots;
///          when more go there it grows by growth_slots at a time, by one where slots have files of
///          their own. A path without the space for that takes no more, is warned of once, and is
///          asked again when the next extent would go there.
/// Threads: any. The lock is held while a file grows, never during a transfer.
/// Errors:  construction: IoError of make_spill_file.
class SlotTable {
 public:
  static constexpr std::int64_t growth_slots = 4;

  SlotTable(std::shared_ptr<PathSet> paths, SlotDemand const& demand);

  /// A free slot of the path that plan::next_path names, by the paths' present rates and what each
  /// holds; empty if no path is writable and has room.
  [[nodiscard]] std::optional<Place> take();
  void give_back(Place place) noexcept;
  /// Returns whether the slot has a file of its own, which can be given away.
  [[nodiscard]] bool is_kept(Place place) const { return files_[place.path].kept != nullptr; }
  /// Whether the file of a kept slot could have that name, on the file system of its own.
  [[nodiscard]] bool may_give(Place place, std::string const& name) const;
  /// Makes the bytes of a slot in use, a kept one, durable and `name` another name of its file,
  /// which is not written again from then on. False if it cannot have that name, with a warning
  /// the first time on each path.
  /// Errors: IoError of fdatasync.
  [[nodiscard]] bool give(Place place, std::string const& name);

  /// Slots of each path so far, used and free.
  [[nodiscard]] std::vector<std::int64_t> slots() const;
  [[nodiscard]] Bytes slot_bytes() const noexcept { return slot_bytes_; }
  [[nodiscard]] StoragePath& path(Place place) const { return *(*paths_)[place.path]; }
  /// File of a slot in use.
  [[nodiscard]] aio::File const& file(Place place) const;
  [[nodiscard]] Bytes offset(Place place) const {
    return is_kept(place) ? files_[place.path].kept->offset() : place.slot * slot_bytes_;
  }

 private:
  struct SlotFile {
    SpillFile file;                   ///< file of all slots
    std::unique_ptr<KeptFiles> kept;  ///< or these: null if not
    std::int64_t slots = 0;
    std::vector<std::int64_t> free;
    bool warned = false;
  };
  static void add_slots(SlotFile& file, std::int64_t count);
  [[nodiscard]] SlotFile file_of_slots(std::size_t path, std::int64_t slots,
                                       SlotDemand const& demand) const;
  [[nodiscard]] std::optional<std::int64_t> take_slot(std::size_t path);
  static void prepare_kept(SlotFile& file);

  std::shared_ptr<PathSet> paths_;
  plan::SplitPolicy split_;
  plan::PathSharer sharer_;
  Bytes slot_bytes_;
  mutable std::mutex mutex_;  ///< guards what files_ says of slots
  std::vector<SlotFile> files_;
};

}  // namespace offstage::tiers
