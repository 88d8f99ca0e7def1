#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "data/input_file.hpp"
#include "data/token_file.hpp"

struct XXH3_state_s;

namespace offstage::data {

/// The file beside tokens that says which of them count as targets: PREFIX.mask of PREFIX.bin, else
/// PATH.mask.
///
/// Format: five little-endian words of 8 bytes, then a byte per token: 1 if the token counts, else
///          0.
///         The words: "OFFMASK1"; how many tokens; how many of them count; XXH3 (64 bits) of the
///         tokens as int32; XXH3 of the mask's bytes. A checksum of 0 is not given.
constexpr Bytes mask_header_bytes = 40;
constexpr char mask_magic[] = "OFFMASK1";
[[nodiscard]] std::string mask_path_of(std::string const& tokens_path);

/// XXH3 of bytes that come piece by piece.
class RunningChecksum {
 public:
  RunningChecksum();
  void add(std::span<std::byte const> bytes);
  [[nodiscard]] std::uint64_t value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const noexcept;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

/// The header's words, but for the first.
struct MaskHeader {
  std::uint64_t tokens{};
  std::uint64_t counted{};
  std::uint64_t tokens_checksum{};
  std::uint64_t mask_checksum{};
};

/// Says which tokens of a file count. The file stays open and is read piece by piece.
/// Threads: one.
class LossMask {
 public:
  /// The mask beside a file of tokens; null if there is none.
  /// Errors: DataError naming `key`, the mask's path, the field and what would be right: another
  ///         magic, another number of tokens, another size, no token that counts.
  [[nodiscard]] static std::unique_ptr<LossMask> beside(TokenFile const& tokens,
                                                        std::string const& key);

  /// The sentence, with a remedy, on tokens beside which there is no mask, if their note says that
  /// they had one (TokenizerNote::is_masked); else empty. Errors: those of note_beside.
  [[nodiscard]] static std::string loss_of(TokenFile const& tokens);

  [[nodiscard]] std::string const& path() const noexcept { return file_.path(); }
  /// Number of tokens that count.
  [[nodiscard]] std::int64_t counted() const noexcept { return counted_; }
  /// Fills `out` with 1 for tokens from `first` on that count, 0 for others.
  /// Errors: DataError for another byte, with its place.
  void read(std::int64_t first, std::span<std::uint8_t> out) const;
  /// Keeps the tokens before `place` alone, or those from it on, whose first one is token 0 then.
  /// Reads the latter. Once, after verify(). Errors: those of read().
  void keep_before(std::int64_t place);
  void keep_from(std::int64_t place);
  /// Reads tokens and mask through and compares them with the header: checksums and the number of
  /// tokens that count. Errors: DataError: it belongs to other tokens, or is damaged.
  void verify(TokenFile const& tokens) const;

 private:
  LossMask(std::string const& path, std::string const& key, std::int64_t tokens);

  /// Number of tokens from `place` to the end that count.
  [[nodiscard]] std::int64_t count_from(std::int64_t place) const;

  InputFile file_;
  MaskHeader header_;
  std::int64_t first_{};    ///< token 0 of those that are kept
  std::int64_t counted_{};  ///< number of kept tokens that count
};

}  // namespace offstage::data
