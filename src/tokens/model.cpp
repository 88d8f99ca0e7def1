#include "tokens/model.hpp"

#include <fmt/format.h>

#include "tokens/bpe.hpp"
#include "tokens/unigram.hpp"

namespace offstage::tokens {

std::vector<std::int32_t> byte_tokens(Model const& model) {
  std::vector<std::int32_t> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(model.find(fmt::format("<0x{:02X}>", byte)).value_or(-1));
  }
  return tokens;
}

std::unique_ptr<Model> make_model(Fields fields) {
  // Old files of BPE do not say so.
  char const* const otherwise = fields.has("merges") ? "BPE" : "";
  bool const is_bpe = fields.choice("type", {"BPE", "Unigram"}, otherwise) == 0;
  auto model = is_bpe ? make_bpe(fields) : make_unigram(fields);
  fields.finish();
  return model;
}

}  // namespace offstage::tokens
