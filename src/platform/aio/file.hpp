#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "platform/aio/descriptor.hpp"

namespace offstage::aio {

/// Memory, offset and length of a direct transfer are multiples of this.
constexpr Bytes direct_alignment = 4096;

/// A file opened with O_DIRECT where the file system takes it. Errors: IoError that names the path.
class File : public Descriptor {
 public:
  File() noexcept = default;
  /// Creates a new file, mode 0600, for reading and writing. EEXIST is an error.
  [[nodiscard]] static File create(std::string const& path);
  /// A link in its place is an error.
  [[nodiscard]] static File open_read(std::string const& path);
  [[nodiscard]] static File open_read_write(std::string const& path);

  /// False where the file system refused O_DIRECT: transfers then go through the page cache.
  [[nodiscard]] bool direct() const noexcept {
    return std::atomic_ref{direct_}.load(std::memory_order_relaxed);
  }
  /// Lets transfers go through the page cache from now on. Returns false where that is refused.
  /// Threads: any.
  [[nodiscard]] bool leave_direct() const noexcept;

  /// Reserves `size` bytes from offset 0 on and makes the file that long (plain fallocate: later
  /// writes into it are asynchronous). IoError says how much was needed and how much is free.
  void allocate(Bytes size) const;
  /// fdatasync. A failure is final: the kernel may have dropped the pages. Who tries again writes
  /// another file.
  void sync() const;
  /// The same for contents that are written by nobody else later. The error has no errno, so that
  /// nothing is tried again after it (ends_by_itself).
  void sync_for_good() const;

 private:
  File(std::string const& path, int flags);

  mutable bool direct_{};
};

/// Makes the entries of a directory durable. Errors: IoError.
void sync_directory(std::string const& path);
/// Makes the name `path` durable in its directory. Errors: IoError.
void sync_name(std::string const& path);

/// Creates a directory with its parents, durably. Returns those that were not there, a parent
/// before its child. A failure leaves none of them behind. Errors: IoError.
std::vector<std::string> make_directory(std::string const& path);

/// Directories that this program made. Unless keep() was called, the destructor removes them.
class MadeDirectories {
 public:
  MadeDirectories() = default;
  ~MadeDirectories() { remove(); }
  MadeDirectories(MadeDirectories const&) = delete;
  MadeDirectories& operator=(MadeDirectories const&) = delete;

  /// Calls make_directory. To be called once.
  void make(std::string const& path) { made_ = make_directory(path); }
  void keep() noexcept { made_.clear(); }
  /// Removes those that are empty.
  void remove() noexcept;

 private:
  std::vector<std::string> made_;
};

/// Bytes that an ordinary user can still write on the file system of `path`; the largest number if
/// it does not tell (ramfs). Errors: IoError.
[[nodiscard]] Bytes free_bytes(std::string const& path);

}  // namespace offstage::aio
