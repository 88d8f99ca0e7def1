#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "tokens/fields.hpp"

namespace offstage::tokens {

/// A part of a text, valid UTF-8.
struct Piece {
  std::string_view text;
  bool first{};  ///< it begins where the whole text began
};
using PieceSink = std::function<void(Piece)>;

/// The field "pre_tokenizer" of a tokenizer.json: what splits a text into pieces, which the model
/// takes one by one.
///
/// Known: ByteLevel, Split, Whitespace, WhitespaceSplit, Punctuation, Digits, CharDelimiterSplit,
///        Metaspace, Sequence.
/// Threads: any.
class PreTokenizer {
 public:
  /// Leaves texts whole.
  PreTokenizer() = default;
  /// Errors: DataError naming file, field and value for what is not known.
  explicit PreTokenizer(Fields fields);

  /// Hands the pieces to `sink`, in order, none of them empty; they live until it returns.
  void split(Piece piece, PieceSink const& sink) const;
  /// True if the model gets bytes that it has to spell in ByteAlphabet: the last step is ByteLevel,
  /// which leaves this to whoever looks pieces up in a cache first.
  [[nodiscard]] bool leaves_bytes() const noexcept { return leaves_bytes_; }

 private:
  using Step = std::function<void(Piece, PieceSink const&)>;
  void add(Fields fields);
  void add_byte_level(Fields& fields);
  void add_metaspace(Fields& fields);
  void run(std::size_t step, Piece piece, PieceSink const& sink) const;

  std::vector<Step> steps_;
  bool leaves_bytes_{};
};

/// "prepend_scheme" of Metaspace, or "add_prefix_space" of files written before it came to be.
enum class Prepend { always, first, never };
[[nodiscard]] Prepend prepend_field(Fields& fields);

}  // namespace offstage::tokens
