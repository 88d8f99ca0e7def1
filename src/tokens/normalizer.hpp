#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tokens/fields.hpp"

namespace offstage::tokens {

/// The field "normalizer" of a tokenizer.json: what is done to a text before it is split.
///
/// Known: NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, Nmt, ByteLevel,
///        Sequence.
/// Threads: any.
class Normalizer {
 public:
  /// Changes nothing.
  Normalizer() = default;
  /// Errors: DataError naming file, field and value for what is not known.
  explicit Normalizer(Fields fields);

  [[nodiscard]] bool is_empty() const noexcept { return steps_.empty(); }
  /// Changes a text, which is valid UTF-8. False if the text's first character was dropped, so that
  /// what is left does not begin where the text began.
  [[nodiscard]] bool apply(std::string& text) const;

 private:
  using Step = std::function<bool(std::string&)>;
  void add(Fields fields);
  std::vector<Step> steps_;
};

}  // namespace offstage::tokens
