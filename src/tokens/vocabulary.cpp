#include "tokens/vocabulary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/printable.hpp"
#include "tokens/model.hpp"

namespace offstage::tokens {

Vocabulary::Vocabulary(Fields& fields, char const* name) {
  auto const& all = fields.value(name);
  if (!all.is_object() || all.empty()) {
    fields.fail(name, "is no object of tokens' texts and numbers");
  }
  for (auto const& [text, number] : all.items()) {
    bool const fits = number.is_number_unsigned() && number.get<std::uint64_t>() < largest_vocab;
    if (!fits) {
      fields.fail(name,
                  fmt::format("'{}' is {}, but a whole number below {} is expected",
                              printable_name(text), printable_name(number.dump()), largest_vocab));
    }
    auto const token = number.get<std::int32_t>();
    if (token < std::ssize(texts_) && texts_[static_cast<std::size_t>(token)]) {
      fields.fail(name,
                  fmt::format("'{}' and '{}' have the same number, {}", printable_name(text),
                              printable_name(*texts_[static_cast<std::size_t>(token)]), token));
    }
    put(text, token);
  }
}

void Vocabulary::put(std::string const& text, std::int32_t token) {
  auto const index = static_cast<std::size_t>(token);
  texts_.resize(std::max(texts_.size(), index + 1));
  texts_[index] = text;
  tokens_[text] = token;
}

std::optional<std::int32_t> Vocabulary::find(std::string_view text) const {
  auto const found = tokens_.find(text);
  return found == tokens_.end() ? std::nullopt : std::optional{found->second};
}

}  // namespace offstage::tokens
