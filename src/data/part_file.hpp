#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"

namespace offstage::data {

/// Errors: UsageError if something is at `path`: its name, and `what`, which says what would be
/// right.
void refuse_existing(std::string const& path, char const* what);

/// PATH.part, a file that gets the name PATH when it is whole.
[[nodiscard]] std::string part_of(std::string const& path);

/// Appends to PATH.part through a buffer of 1 MiB. The file is removed in the end unless it was
/// kept.
/// Errors:  IoError.
/// Threads: one.
class PartFile {
 public:
  /// Makes the file; `begun`: the length of one that is there, which is cut to it and kept. A file
  /// of length 0 may be missing.
  /// Errors: UsageError if there is a file of the name, or a part that is not expected; DataError
  ///         if the part is shorter than `begun`.
  PartFile(std::string path, std::optional<Bytes> begun);
  ~PartFile();
  PartFile(PartFile const&) = delete;
  PartFile& operator=(PartFile const&) = delete;

  void append(std::span<std::byte const> bytes);
  /// Empties the buffer.
  void flush();
  /// Writes over bytes that were flushed.
  void write_at(Bytes offset, std::span<std::byte const> bytes);
  /// Reads bytes that were flushed.
  void read_at(Bytes offset, std::span<std::byte> out) const;
  /// Flushes and makes the bytes last.
  void sync();
  /// Keeps the file from now on.
  void keep() noexcept { kept_ = true; }

  [[nodiscard]] std::string const& path() const noexcept { return path_; }

 private:
  void cut(Bytes size);

  std::string path_;
  std::string part_;
  int file_ = -1;
  bool kept_{};
  Bytes size_{};  ///< without the buffer
  std::vector<std::byte> buffer_;
};

}  // namespace offstage::data
