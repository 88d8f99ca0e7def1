#include "tokens/model.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/printable.hpp"
#include "tokens/bpe.hpp"
#include "tokens/unigram.hpp"

namespace offstage::tokens {

std::int32_t token_number(Fields const& fields, char const* name, nlohmann::json const& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= largest_vocab) {
    fields.fail(name, fmt::format("has {}, but the number of a token is expected",
                                  printable_name(value.dump())));
  }
  return value.get<std::int32_t>();
}

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
