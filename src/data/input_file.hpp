#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/units.hpp"

namespace offstage::data {

/// Bytes that a parser reads where it wants, a file or, in tests, memory.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  [[nodiscard]] virtual Bytes size() const = 0;
  /// Name in errors: "data.train=a.idx".
  [[nodiscard]] virtual std::string name() const = 0;
  /// Fills `out` with the bytes from `offset` on. Errors: PreconditionError beyond size().
  virtual void read(Bytes offset, std::span<std::byte> out) const = 0;

  /// Throws DataError: name, a colon, the problem.
  [[noreturn]] void fail(std::string const& problem) const;
};

/// A regular file that stays open and is read piece by piece, so that others may cut it without
/// killing this process.
/// Threads: any.
/// Errors:  DataError naming key and path: missing, not this user's to read, no regular file,
///          empty, or shorter than it was. IoError if the system cannot open or read it now: too
///          many open files, a file system that fails. A read that fails is tried again first, for
///          two seconds in all.
class InputFile final : public ByteSource {
 public:
  /// `key` ("data.train") is left out of errors if empty.
  InputFile(std::string const& path, std::string const& key);

  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] Bytes size() const override { return size_; }
  /// When the contents last changed, in nanoseconds since 1970.
  [[nodiscard]] std::int64_t modified() const noexcept { return modified_; }
  [[nodiscard]] std::string name() const override;
  void read(Bytes offset, std::span<std::byte> out) const override;

 private:
  void try_to_read(Bytes offset, std::span<std::byte> out) const;

  /// Opens for reading; negative if that fails.
  class Descriptor {
   public:
    explicit Descriptor(std::string const& path);
    ~Descriptor();
    Descriptor(Descriptor const&) = delete;
    Descriptor& operator=(Descriptor const&) = delete;
    [[nodiscard]] int get() const noexcept { return value_; }

   private:
    int value_;
  };

  std::string path_;
  std::string key_;
  Descriptor file_;
  Bytes size_{};
  std::int64_t modified_{};
};

/// The whole file, as text. Errors: DataError if it has more than `most` bytes, in the words of
/// `too_large`, or is a pointer of Git LFS; those of read.
[[nodiscard]] std::string read_whole(InputFile const& file, Bytes most,
                                     std::string const& too_large);

/// Whether there is something, or a file, at a path of `key`, links followed.
/// Errors: DataError naming both where this user may not look, IoError where the file system fails.
[[nodiscard]] bool input_is_there(std::string const& path, std::string const& key);
[[nodiscard]] bool input_is_file(std::string const& path, std::string const& key);

}  // namespace offstage::data
