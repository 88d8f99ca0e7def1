#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "data/token_file.hpp"

namespace offstage::data {

/// Tokens and documents that were written, the last one whole.
struct Written {
  std::int64_t tokens{};
  std::int64_t documents{};
};

/// The type that files of a format have for a vocabulary: u16 where it has at most 65536 tokens;
/// beyond, megatron takes i32, llmc u32, and nanogpt has none. Errors: UsageError if there is none.
[[nodiscard]] TokenType token_type_for(Format format, std::int64_t vocab);

/// Writes a file of tokens: PREFIX.bin, and PREFIX.idx for megatron, and PREFIX.mask
/// (loss_mask.hpp) where that is asked for. They are called PREFIX.bin.part and so on until
/// name_token_files() names them.
///
/// Kept:   files outlive the writer from keep() on; before, it removes them.
/// Memory: a buffer of 1 MiB per file, whatever the number of tokens and documents.
/// Errors: UsageError if the format does not hold the vocabulary or one of the files is there
///         already, and a mask even where none is to be written; DataError if the format cannot
///         count what is written; IoError.
/// Threads: one.
class TokenWriter {
 public:
  /// `format` is megatron, llmc or nanogpt. `begun`: what save() returned in a process that ended
  /// meanwhile; the writer goes on from there and drops what was written later. Zeros: files of
  /// such a process may be there, and are emptied.
  /// Errors: also UsageError if a .part is there and `begun` is not given, DataError if one is
  /// shorter than `begun`.
  TokenWriter(std::string const& prefix, Format format, std::int64_t vocab, bool has_mask = false,
              std::optional<Written> begun = std::nullopt);
  ~TokenWriter();
  TokenWriter(TokenWriter const&) = delete;
  TokenWriter& operator=(TokenWriter const&) = delete;

  /// Adds tokens, 0 .. vocab - 1, to the current document. `mask`: of each 1 if it counts, else 0;
  /// only where there is a mask.
  void write(std::span<std::int32_t const> tokens, std::span<std::uint8_t const> mask = {});
  /// Ends the current document; one without tokens is left out.
  void end_document();
  /// Makes last what was written. Errors: PreconditionError within a document.
  Written save();
  /// Ends the last document, completes the files and makes them last. Errors: also DataError if
  /// there is no token, or none that counts.
  void finish();
  /// Keeps the files from now on, when it is known elsewhere what save() or finish() made last.
  void keep() noexcept;

  [[nodiscard]] std::int64_t tokens() const noexcept;
  [[nodiscard]] std::int64_t documents() const noexcept;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

/// Gives the files of a writer that finished their names, PREFIX.bin last, and makes that last.
/// Files that have their names already stay, so that it can be called again.
/// Errors: UsageError if somebody else wrote a file of such a name; DataError if one is missing;
/// IoError.
void name_token_files(std::string const& prefix, Format format, bool has_mask);

}  // namespace offstage::data
