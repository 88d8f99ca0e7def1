#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "base/units.hpp"

namespace offstage::huggingface {

/// Owns a descriptor for transfers through the page cache, at any offset and length; move-only.
/// Threads: any for read_at and write_at. Errors: IoError naming the path.
class File {
 public:
  File() noexcept = default;
  /// Errors: DataError if it is not there or no regular file.
  [[nodiscard]] static File open_read(std::string const& path);
  [[nodiscard]] static File open_write(std::string const& path);
  /// Makes it anew, empty, readable as the umask says.
  [[nodiscard]] static File create(std::string const& path);
  ~File() { reset(); }

  File(File const&) = delete;
  File& operator=(File const&) = delete;
  File(File&& other) noexcept
      : descriptor_{std::exchange(other.descriptor_, -1)}, path_{std::move(other.path_)} {}
  File& operator=(File&& other) noexcept {
    File taken{std::move(other)};
    std::swap(descriptor_, taken.descriptor_);
    std::swap(path_, taken.path_);
    return *this;
  }

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] bool is_open() const noexcept { return descriptor_ >= 0; }
  [[nodiscard]] Bytes size() const;

  /// Fills `out`. Errors: DataError if the file ends before.
  void read_at(Bytes offset, std::span<std::byte> out) const;
  void write_at(Bytes offset, std::span<std::byte const> bytes) const;
  /// Reserves this many bytes and makes the file that long.
  void allocate(Bytes size) const;
  /// fsync. A failure is final.
  void sync() const;
  void reset() noexcept;

 private:
  File(int descriptor, std::string path) : descriptor_{descriptor}, path_{std::move(path)} {}

  int descriptor_{-1};
  std::string path_;
};

/// A whole text file. Errors: DataError if it is not there or larger than `limit`.
[[nodiscard]] std::string read_text(std::string const& path, Bytes limit);

}  // namespace offstage::huggingface
