#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace offstage::data {

/// What a file of tokens looks like.
enum class Format {
  automatic,  ///< by name and first bytes: see open_tokens
  text,       ///< every byte is a token
  megatron,   ///< PATH.bin with PATH.idx
  llmc,       ///< 256 int32 of header, then u16 or u32
  nanogpt,    ///< raw u16
};
[[nodiscard]] char const* name_of(Format format);

/// A file of tokens. It stays open and is read piece by piece, so it takes no memory of this process
/// but the document index, and may be cut by others without killing it.
/// Threads: one.
class TokenFile {
 public:
  virtual ~TokenFile() = default;
  [[nodiscard]] virtual std::string const& path() const = 0;
  [[nodiscard]] virtual Format format() const = 0;
  [[nodiscard]] virtual std::int64_t tokens() const = 0;
  /// Where documents begin, ascending, the first one 0; of formats that store it.
  [[nodiscard]] virtual std::optional<std::vector<std::int64_t>> documents() const = 0;
  /// Fills `out` with the tokens from `first` on.
  /// Errors: DataError naming key, path and position for a token outside the vocabulary or a file
  ///         that became shorter; PreconditionError beyond tokens().
  virtual void read(std::int64_t first, std::span<std::int32_t> out) const = 0;
};

struct OpenTokens {
  std::string path;
  std::string key;  ///< "data.train", named in errors
  Format format = Format::automatic;
  std::int64_t vocab{};  ///< tokens 0 .. vocab - 1 are valid
};
/// Opens one file. `automatic` takes megatron if PATH, PATH.bin or PATH without .idx has a .idx beside
/// its .bin, llmc for its magic, nanogpt for other names that end in .bin, else text.
/// Errors: DataError naming key, path, field, value and what would be right: missing or no regular file,
///         empty, wrong magic or version, a token type that holds no tokens, sizes, lengths or pointers
///         in the index that do not fit the file, a token count that does not fit. IoError from reads.
[[nodiscard]] std::unique_ptr<TokenFile> open_tokens(OpenTokens const& what);

/// Where documents begin if `separator` ends each of them. Reads the whole file.
[[nodiscard]] std::vector<std::int64_t> documents_by_separator(TokenFile const& file,
                                                               std::int32_t separator);

}  // namespace offstage::data
