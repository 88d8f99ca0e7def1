#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "platform/aio/file.hpp"

namespace offstage::tiers {

/// Form of a file around one slot, so that it is a file of some format, and the directory of its
/// name.
struct KeptFileShape {
  std::string directory;        ///< directory of the names, on the file system of the path
  std::string prefix;           ///< prefix of the names, which no other process has
  std::vector<std::byte> head;  ///< up to the slot: a multiple of aio::direct_alignment, above 0
  Bytes slot_bytes{};           ///< a multiple of aio::direct_alignment
  std::vector<std::byte> tail;  ///< behind it
  bool near_alone =
      false;  ///< a file gets other names beside `directory` or below alone; else wherever it may

  [[nodiscard]] Bytes file_bytes() const {
    return std::ssize(head) + slot_bytes + std::ssize(tail);
  }
};

/// Slots of a persistent path, a file each, `directory`/`prefix`-`path`-`slot`, so that a slot may
/// be given away: to whoever wants its file under a name of his own. It is not written again then,
/// ever.
///
/// Files:   0600; made in a spill directory of the path (see make_spill_file), whole, and renamed.
///          Names that are still there at the end are removed.
/// Threads: none of its own, the owner's lock; give() needs none.
class KeptFiles {
 public:
  struct Where {
    std::size_t path{};
    std::string directory;  ///< directory of the path
    std::string spill;      ///< name of the spill directory in it
  };
  KeptFiles(Where where, std::shared_ptr<KeptFileShape const> shape);
  ~KeptFiles();
  KeptFiles(KeptFiles const&) = delete;
  KeptFiles& operator=(KeptFiles const&) = delete;

  /// So many slots, none of which has a file, more than before.
  void add(std::int64_t count);
  [[nodiscard]] bool has_file(std::int64_t slot) const { return at(slot).file.is_open(); }
  /// Errors: IoError as make_spill_file; `directory` is on another file system, or that one has no
  ///         hard links.
  void make(std::int64_t slot);
  [[nodiscard]] aio::File const& file(std::int64_t slot) const { return at(slot).file; }
  [[nodiscard]] Bytes offset() const { return std::ssize(shape_->head); }

  /// Whether a file may get a name: on its file system, and see KeptFileShape::near_alone.
  [[nodiscard]] bool may_give(std::string const& name) const;
  /// From now on the slot is not this object's to write. Returns its file, to be given away.
  [[nodiscard]] aio::File const& give_away(std::int64_t slot);
  /// Makes the bytes of a file that was given away durable and `name` another name of it; the name
  /// itself is durable when its directory is synced. False, with a warning the first time, if it
  /// cannot have the name.
  /// Errors: IoError of fdatasync; somebody has shortened the file, which nobody could read.
  [[nodiscard]] bool give(aio::File const& file, std::string const& name) const;
  /// Nobody here reads the slot any more. It has no file then if that was given away.
  void leave(std::int64_t slot) noexcept;

 private:
  struct Slot {
    aio::File file;
    bool given_away = false;
  };
  [[nodiscard]] Slot& at(std::int64_t slot) { return *slots_[static_cast<std::size_t>(slot)]; }
  [[nodiscard]] Slot const& at(std::int64_t slot) const {
    return *slots_[static_cast<std::size_t>(slot)];
  }
  void probe_links(std::string const& name) const;

  Where where_;
  std::shared_ptr<KeptFileShape const> shape_;
  std::vector<std::unique_ptr<Slot>> slots_;
  bool has_links_ = false;              ///< the file system, found out with the first file
  mutable std::atomic<bool> warned_{};  ///< give() said that a link failed
};

}  // namespace offstage::tiers
