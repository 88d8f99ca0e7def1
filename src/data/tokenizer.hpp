#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace offstage::data {

/// A place at which a text may be cut without other tokens: a token that is found by its text alone
/// stands there. For every p >= behind, text.substr(0, p) has the tokens before the cut, and then
/// those of text.substr(begin, p - begin).
struct Cut {
  std::size_t begin{};   ///< first byte of that token
  std::size_t behind{};  ///< the byte behind its last
  std::size_t tokens{};  ///< number of the text's tokens before the cut
};

/// Turns texts into tokens, one after another.
/// Threads: one.
class Encoder {
 public:
  virtual ~Encoder() = default;
  /// Appends the tokens of a text. Errors: DataError for a text that the tokenizer cannot take.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& tokens) = 0;
  /// The same; also appends the cuts that are known, in order.
  virtual void encode_with_cuts(std::string_view text, std::vector<std::int32_t>& tokens,
                                std::vector<Cut>& /*cuts*/) {
    encode(text, tokens);
  }
};

/// Tokens that a tokenizer puts around a text if asked to.
struct Frame {
  std::vector<std::int32_t> before;
  std::vector<std::int32_t> behind;
};

/// Special tokens that a tokenizer finds in a text.
struct SpecialsFound {
  std::int64_t count{};
  std::int32_t first{};  ///< the first of them, if there is one
};

/// Turns text into tokens and back.
/// Threads: any.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  [[nodiscard]] virtual std::int64_t vocab() const = 0;
  /// An encoder for one thread, which may remember what it met; the tokenizer outlives it.
  [[nodiscard]] virtual std::unique_ptr<Encoder> encoder() const = 0;
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const;
  /// The text of tokens; tokens that stand for no text are left out.
  /// Errors: DataError for a token outside the vocabulary.
  [[nodiscard]] virtual std::string decode(std::span<std::int32_t const> tokens) const = 0;
  /// Token that ends a document; nullopt if the tokenizer has none.
  [[nodiscard]] virtual std::optional<std::int32_t> end_of_document() const = 0;
  [[nodiscard]] virtual Frame frame() const { return {}; }
  /// True if a text may be any bytes; else those that are no UTF-8 become U+FFFD.
  [[nodiscard]] virtual bool takes_bytes() const { return false; }
  /// The token that is called so, "</s>"; nullopt if there is none.
  [[nodiscard]] virtual std::optional<std::int32_t> token(std::string_view text) const = 0;
  /// The tokens of a text that are special, as the text has theirs: "</s>" written out. They mean
  /// to a model what the tokenizer's owner meant by them, not what the text says.
  [[nodiscard]] virtual SpecialsFound specials_in(std::string_view /*text*/) const { return {}; }
  /// The text by which token() finds a token; empty if there is none.
  [[nodiscard]] virtual std::string name_of(std::int32_t token) const = 0;
};

/// Throws DataError for the first token outside 0 .. vocab - 1.
void check_tokens(std::span<std::int32_t const> tokens, std::int64_t vocab);

/// Whether a SentencePiece model's tokens for begin and end are put around a text if asked to, and
/// the text of the token that ends one, if it is not the model's own.
struct Around {
  bool begin = false, end = false;
  std::optional<std::string> end_token{};
};

/// "bytes", or the path of a SentencePiece model.
/// Errors: DataError naming `key` and the path if it is no such model, or has no such token.
[[nodiscard]] std::unique_ptr<Tokenizer> open_tokenizer(std::string const& name,
                                                        std::string const& key,
                                                        Around const& around = {});

}  // namespace offstage::data
