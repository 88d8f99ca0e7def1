#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace offstage::data {

/// Formats of token files.
enum class Format {
  automatic,  ///< by name and first bytes: see open_tokens
  text,       ///< every byte is a token
  megatron,   ///< PATH.bin with PATH.idx
  llmc,       ///< 256 int32 of header, then u16 or u32
  nanogpt,    ///< raw u16
  u32,        ///< raw u32; never taken for automatic
};
/// The formats' names for users, in the order of Format.
constexpr std::array<std::pair<char const*, Format>, 6> format_words{{
    {"auto", Format::automatic},
    {"text", Format::text},
    {"megatron", Format::megatron},
    {"llmc", Format::llmc},
    {"nanogpt", Format::nanogpt},
    {"u32", Format::u32},
}};
[[nodiscard]] char const* name_of(Format format);

/// How a file stores one token, little-endian.
enum class TokenType { u8, i8, u16, i16, i32, u32, i64 };
constexpr std::int64_t u16_tokens = 65'536;  ///< tokens that u16 can tell apart
[[nodiscard]] char const* name_of(TokenType type);
/// Bytes of one token.
[[nodiscard]] std::int64_t size_of(TokenType type);

/// A file of tokens. It stays open and is read piece by piece, so it takes no memory of this
/// process but a small buffer, and may be cut by others without killing it.
/// Threads: one.
class TokenFile {
 public:
  virtual ~TokenFile() = default;
  /// The file that holds the tokens: PATH.bin of megatron.
  [[nodiscard]] virtual std::string const& path() const = 0;
  [[nodiscard]] virtual Format format() const = 0;
  [[nodiscard]] virtual TokenType type() const = 0;
  [[nodiscard]] virtual std::int64_t tokens() const = 0;
  /// Where documents begin, ascending, the first one 0; of formats that store it. Documents without
  /// tokens are left out. Reads the index again, whole. Errors: as open_tokens.
  [[nodiscard]] virtual std::optional<std::vector<std::int64_t>> documents() const = 0;
  /// How many documents() would tell of, without reading the index again.
  [[nodiscard]] virtual std::optional<std::int64_t> document_count() const = 0;
  /// Why the tokens may be others than they seem: a sentence; empty: nothing speaks against them.
  [[nodiscard]] virtual std::string doubt() const = 0;
  /// Fills `out` with the tokens from `first` on.
  /// Errors: DataError naming key, path and position for a token outside the vocabulary or a file
  ///         that became shorter; PreconditionError beyond tokens(); IoError.
  virtual void read(std::int64_t first, std::span<std::int32_t> out) const = 0;
};

struct OpenTokens {
  std::string path;
  std::string key;  ///< "data.train", named in errors
  Format format = Format::automatic;
  std::int64_t vocab{};                   ///< tokens 0 .. vocab - 1 are valid
  std::string vocab_key = "model.vocab";  ///< named in errors
  bool vocab_is_known = true;             ///< false: `vocab` is no more than a limit
};
/// Opens one file. `automatic` takes megatron for X.idx, and for X.bin or an X that is no file if
/// both X.bin and X.idx are there; llmc for its magic; nanogpt for other names that end in .bin;
/// else text. A text is read through if the vocabulary does not hold all bytes. `automatic` refuses
/// what is no tokens by its first bytes (lookalikes.hpp), and for nanogpt what seems to be int32 or
/// int64, and every file where the known vocabulary has more tokens than u16 can tell apart.
/// Errors: DataError naming key, path, field, value and what would be right: missing or no regular
///         file, empty, wrong magic or version, a token type that holds no tokens, sizes, lengths
///         or pointers in the index that do not fit the file, a token count that does not fit.
///         IoError from reads.
[[nodiscard]] std::unique_ptr<TokenFile> open_tokens(OpenTokens const& what);

/// Calls work(first, tokens) with the tokens [begin, end) of a file in order, piece by piece.
template <class Work>
void for_each_piece(TokenFile const& file, std::int64_t begin, std::int64_t end, Work const& work) {
  constexpr std::int64_t step = 64 * 1024;
  std::vector<std::int32_t> buffer(static_cast<std::size_t>(std::min(end - begin, step)));
  for (std::int64_t first = begin; first < end; first += step) {
    auto const count = std::min(step, end - first);
    auto const piece = std::span{buffer}.first(static_cast<std::size_t>(count));
    file.read(first, piece);
    work(first, std::span<std::int32_t const>{piece});
  }
}
/// The same with all tokens.
template <class Work>
void for_each_piece(TokenFile const& file, Work const& work) {
  for_each_piece(file, 0, file.tokens(), work);
}

/// Where documents begin that follow a separator among the tokens [begin, end), which it reads. A
/// separator at the file's end has none behind it.
[[nodiscard]] std::vector<std::int64_t> begins_behind(TokenFile const& file, std::int32_t separator,
                                                      std::int64_t begin, std::int64_t end);
/// Where documents begin if `separator` ends each of them. Reads the whole file.
[[nodiscard]] std::vector<std::int64_t> documents_by_separator(TokenFile const& file,
                                                               std::int32_t separator);

}  // namespace offstage::data
