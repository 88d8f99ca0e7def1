#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/batch.hpp"

namespace offstage::data {

/// A text file whose bytes are tokens 0..255, mapped into memory.
/// Errors: DataError naming `key` (as in "data.train") and the path: missing, not a regular file,
///         empty, or with a byte that is no token of a vocabulary of `vocab` (names the byte and
///         its offset).
class TextFile {
 public:
  TextFile(std::string const& path, std::string const& key, std::int64_t vocab);
  ~TextFile();
  TextFile(TextFile const&) = delete;
  TextFile& operator=(TextFile const&) = delete;

  [[nodiscard]] std::int64_t tokens() const noexcept { return size_; }
  [[nodiscard]] std::int32_t operator[](std::int64_t i) const noexcept { return data_[i]; }
  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  /// Entropy of single bytes, in nats: what a model reaches that knows frequencies alone.
  [[nodiscard]] double unigram_entropy() const;

 private:
  void unmap() noexcept;
  std::string path_;
  unsigned char const* data_{};
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
  /// The batch of these windows, in this order.
  [[nodiscard]] TokenBatch batch(std::span<std::int64_t const> windows) const;

 private:
  TextFile const& file_;
  std::int64_t sequence_;
  std::int64_t count_;
};

}  // namespace offstage::data
