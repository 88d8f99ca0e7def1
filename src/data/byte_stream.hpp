#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "data/input_file.hpp"

namespace offstage::data {

/// Bytes that come one after another.
/// Threads: one.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Fills `out` from its beginning; fewer bytes only where the stream ends. Returns how many.
  /// Errors: DataError naming the file for damaged contents; those of InputFile.
  [[nodiscard]] virtual std::size_t read(std::span<std::byte> out) = 0;
  /// The file that the bytes come from, and how much of it is read.
  [[nodiscard]] virtual InputFile const& file() const = 0;
  [[nodiscard]] virtual Bytes done() const = 0;
};

/// The contents of a file: unpacked if its first bytes are those of gzip (also several members one
/// behind the other, and zeros after one) or zstd (also several frames), else as they are.
/// Memory: some MiB, for zstd as much as its window: 128 MiB at most, but 2 GiB for --long=31.
/// Errors: those of InputFile.
[[nodiscard]] std::unique_ptr<ByteStream> open_stream(std::string const& path,
                                                      std::string const& key);

}  // namespace offstage::data
