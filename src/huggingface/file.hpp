#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "base/units.hpp"
#include "platform/aio/descriptor.hpp"

namespace offstage::huggingface {

/// A file for transfers through the page cache, at any offset and length.
/// Threads: any for read_at and write_at. Errors: IoError naming the path.
class File : public aio::Descriptor {
 public:
  File() noexcept = default;
  /// Errors: DataError if it is not there or no regular file.
  [[nodiscard]] static File open_read(std::string const& path);
  /// Not through a symbolic link.
  [[nodiscard]] static File open_write(std::string const& path);
  /// Makes it, empty, readable as the umask says. Errors: IoError, also if something is called so.
  [[nodiscard]] static File create(std::string const& path);

  /// Fills `out`. Errors: DataError if the file ends before.
  void read_at(Bytes offset, std::span<std::byte> out) const;
  void write_at(Bytes offset, std::span<std::byte const> bytes) const;
  /// Reserves this many bytes and makes the file that long.
  void allocate(Bytes size) const;
  /// fsync. A failure is final.
  void sync() const;

 private:
  File(std::string const& path, int flags) : Descriptor{path, flags, 0666} {}
};

/// The first of such names in a directory; nullopt where there is none, or nobody can look.
[[nodiscard]] std::optional<std::string> first_name(std::string const& directory,
                                                    bool (*is_such)(std::string const&));

/// A whole text file. Errors: DataError if it is not there, larger than `limit`, or a Git LFS
/// pointer.
[[nodiscard]] std::string read_text(std::string const& path, Bytes limit);

}  // namespace offstage::huggingface
