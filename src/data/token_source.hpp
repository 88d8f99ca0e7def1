#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/batch.hpp"

namespace offstage::data {

/// A text file whose bytes are tokens 0..255. It stays open and is read piece by piece, so it takes
/// no memory of this process and may be cut by others without killing it.
/// Threads: one.
/// Errors: DataError naming `key` (as in "data.train") and the path: missing, not a regular file,
///         empty, or with a byte that is no token of a vocabulary of `vocab` (names the byte and
///         its offset; a file is read through for that if `vocab` is below 256).
class TextFile {
 public:
  TextFile(std::string const& path, std::string const& key, std::int64_t vocab);

  [[nodiscard]] std::int64_t tokens() const noexcept { return size_; }
  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  /// Fills `bytes` with the tokens from `offset` on.
  /// Errors: DataError if the file cannot be read, became shorter, or has a byte by now that is no
  ///         token; PreconditionError beyond tokens().
  void read(std::int64_t offset, std::span<unsigned char> bytes) const;
  /// Entropy of single bytes, in nats: what a model reaches that knows frequencies alone. Reads the
  /// whole file.
  [[nodiscard]] double unigram_entropy() const;

 private:
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

  [[noreturn]] void fail(std::string const& problem) const;

  std::string path_;
  std::string key_;
  std::int64_t vocab_;
  Descriptor file_;
  std::int64_t size_{};
};

/// Deals windows of `sequence` + 1 tokens. Window w starts at token w * sequence, so there are
/// (tokens - 1) / sequence of them and neighbours share one token.
/// Errors: DataError if the file is shorter than one window, saying how many tokens there are and
///         how many are needed.
class Windows {
 public:
  Windows(TextFile const& file, std::string const& key, std::int64_t sequence);

  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  /// Sample s of training, s counting from 0 over all steps: each epoch shows every window once, in
  /// an order that depends on seed and epoch alone.
  [[nodiscard]] std::int64_t shuffled(std::int64_t sample, std::uint64_t seed) const;
  /// The batch of these windows, in this order. Errors: those of TextFile::read.
  [[nodiscard]] TokenBatch batch(std::span<std::int64_t const> windows) const;

 private:
  TextFile const& file_;
  std::int64_t sequence_;
  std::int64_t count_;
};

}  // namespace offstage::data
