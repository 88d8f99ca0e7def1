#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/token_file.hpp"

namespace offstage::data {

/// Writes a file of tokens: PREFIX.bin, and PREFIX.idx for megatron, and PREFIX.mask (loss_mask.hpp)
/// where that is asked for.
///
/// Types:  u16 where the vocabulary has at most 65536 tokens; beyond, megatron takes i32, llmc u32, and
///         nanogpt has none.
/// Commit: files are written as PREFIX.bin.part and PREFIX.idx.part and get their names in commit(),
///         after fsync, PREFIX.bin last. Without commit() they are removed.
/// Memory: a buffer of 1 MiB, whatever the number of tokens and documents.
/// Errors: UsageError if the format does not hold the vocabulary or one of the files is there already,
///         a .part too, and a mask even where none is to be written; DataError if the format cannot count what is written; IoError.
/// Threads: one.
class TokenWriter {
 public:
  /// `format` is megatron, llmc or nanogpt.
  TokenWriter(std::string const& prefix, Format format, std::int64_t vocab, bool has_mask = false);
  ~TokenWriter();
  TokenWriter(TokenWriter const&) = delete;
  TokenWriter& operator=(TokenWriter const&) = delete;

  /// Adds tokens, 0 .. vocab - 1, to the current document. `mask`: of each 1 if it counts, else 0;
  /// only where there is a mask.
  void write(std::span<std::int32_t const> tokens, std::span<std::uint8_t const> mask = {});
  /// Ends the current document; one without tokens is left out.
  void end_document();
  /// Ends the last document too. Errors: also DataError if there is no token.
  void commit();

  [[nodiscard]] TokenType type() const noexcept;
  [[nodiscard]] std::int64_t tokens() const noexcept;
  [[nodiscard]] std::int64_t documents() const noexcept;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace offstage::data
