#pragma once

#include <functional>
#include <string>
#include <utility>

#include "platform/aio/file.hpp"

namespace offstage::tiers {

/// Inside its directory, for the moment that it has a name.
constexpr char const* spill_file_name = "extents";

/// A file that no directory names. NFS and FUSE keep it under a hidden name until it is closed, and
/// so its spill directory, which the destructor removes then.
class SpillFile : public aio::File {
 public:
  SpillFile() noexcept = default;
  SpillFile(aio::File file, std::string directory) noexcept
      : File{std::move(file)}, directory_{std::move(directory)} {}
  ~SpillFile();
  SpillFile(SpillFile const&) = delete;
  SpillFile& operator=(SpillFile const&) = delete;
  SpillFile(SpillFile&& other) noexcept
      : File{std::move(other)}, directory_{std::exchange(other.directory_, {})} {}
  SpillFile& operator=(SpillFile&& other) noexcept {
    SpillFile taken{std::move(other)};
    std::swap(static_cast<File&>(*this), static_cast<File&>(taken));
    directory_.swap(taken.directory_);
    return *this;
  }

 private:
  std::string directory_;
};

/// A file of `size` bytes that no directory names: made in `directory`/`name` (0600 in 0700),
/// unlinked together with that directory, and only then allocated. Nothing is left behind, however
/// the process ends; on NFS and FUSE a killed one leaves the empty directory. An empty directory
/// that a killed process left is taken over.
/// Errors: IoError with the key tiers.path, the path and the remedy: the directory is missing, is
///         none, is not writable or has no space; `directory`/`name` exists and is not empty.
[[nodiscard]] SpillFile make_spill_file(std::string const& directory, std::string const& name,
                                        Bytes size);

/// Where a file is made.
struct SpillPlace {
  std::string directory;
  std::string name;  ///< name of the spill directory in it
};
/// The same, but the file gets the name `target`, which it replaces, when it is allocated and
/// `fill(path)` has returned; a process that is killed before leaves what tidy_spills removes.
/// Errors: IoError also if `target` lies on another file system.
void make_named_file(SpillPlace const& place, Bytes size,
                     std::function<void(std::string const& path)> const& fill,
                     std::string const& target);

/// An empty spill directory, by which processes of other nodes see that they share `directory`. It
/// is gone with this object.
class SpillMark {
 public:
  /// Errors: IoError as make_spill_file.
  explicit SpillMark(SpillPlace const& place);
  ~SpillMark();
  SpillMark(SpillMark const&) = delete;
  SpillMark& operator=(SpillMark const&) = delete;
  SpillMark(SpillMark&&) = delete;
  SpillMark& operator=(SpillMark&&) = delete;

 private:
  std::string path_;
};

/// Returns whether a spill directory of that place is there.
[[nodiscard]] bool is_there(SpillPlace const& place);

/// True if both directories are there and on one file system.
[[nodiscard]] bool on_one_file_system(std::string const& one, std::string const& other);

/// Errors: IoError as make_spill_file would throw for what can be told before.
void require_space(std::string const& directory, Bytes size);

}  // namespace offstage::tiers
