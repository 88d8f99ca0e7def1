#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tokens/fields.hpp"

namespace offstage::tokens {

/// The field "decoder" of a tokenizer.json: turns tokens' texts into the text they stand for.
///
/// Known: ByteLevel, Metaspace, ByteFallback, Fuse, Strip, Replace, BPEDecoder, Sequence.
/// Threads: any.
class Decoder {
 public:
  /// Joins texts by blanks, as the `tokenizers` package does without a decoder.
  Decoder() = default;
  /// Errors: DataError naming file, field and value for what is not known.
  explicit Decoder(Fields fields);

  [[nodiscard]] std::string decode(std::vector<std::string> texts) const;

 private:
  using Texts = std::vector<std::string>;
  using Step = std::function<void(Texts&)>;
  void add(Fields fields);
  std::vector<Step> steps_;
  bool any_{};
};

}  // namespace offstage::tokens
