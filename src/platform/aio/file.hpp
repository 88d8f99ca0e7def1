#pragma once

#include <string>
#include <utility>

#include "base/units.hpp"

namespace offstage::aio {

/// Memory, offset and length of a direct transfer are multiples of this.
constexpr Bytes direct_alignment = 4096;

/// Owns one file descriptor, opened with O_DIRECT where the file system takes it; move-only.
/// Errors: IoError that names the path; the destructor closes and never throws.
class File {
 public:
  File() noexcept = default;
  /// Creates a new file, mode 0600, for reading and writing. EEXIST is an error.
  [[nodiscard]] static File create(std::string const& path);
  [[nodiscard]] static File open_read(std::string const& path);
  [[nodiscard]] static File open_read_write(std::string const& path);
  ~File() { reset(); }

  File(File const&) = delete;
  File& operator=(File const&) = delete;
  File(File&& other) noexcept
      : descriptor_{std::exchange(other.descriptor_, -1)},
        direct_{other.direct_},
        path_{std::move(other.path_)} {}
  File& operator=(File&& other) noexcept {
    File taken{std::move(other)};
    std::swap(descriptor_, taken.descriptor_);
    std::swap(direct_, taken.direct_);
    std::swap(path_, taken.path_);
    return *this;
  }

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  /// False where the file system refused O_DIRECT: transfers then go through the page cache.
  [[nodiscard]] bool direct() const noexcept { return direct_; }
  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] Bytes size() const;

  /// Reserves `size` bytes from offset 0 on and makes the file that long (plain fallocate: later
  /// writes into it are asynchronous). IoError says how much was needed and how much is free.
  void allocate(Bytes size) const;
  /// fdatasync. A failure is final: the kernel may have dropped the pages; never retried.
  void sync() const;
  void reset() noexcept;

 private:
  File(int descriptor, bool direct, std::string path)
      : descriptor_{descriptor}, direct_{direct}, path_{std::move(path)} {}
  static File open(std::string const& path, int flags);

  int descriptor_{-1};
  bool direct_{};
  std::string path_;
};

/// Makes the entries of a directory durable. Errors: IoError.
void sync_directory(std::string const& path);

/// Bytes that an ordinary user can still write on the file system of `path`. Errors: IoError.
[[nodiscard]] Bytes free_bytes(std::string const& path);

}  // namespace offstage::aio
