#include "tokens/beside.hpp"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "tokens/fields.hpp"
#include "tokens/model.hpp"
#include "tokens/read_json.hpp"

namespace offstage::tokens {
namespace {

using nlohmann::json;

/// The directory of a tokenizer.
class Files {
 public:
  Files(std::string const& tokenizer, std::string key)
      : directory_{std::filesystem::path{tokenizer}.parent_path()}, key_{std::move(key)} {}

  /// Calls use(fields) for the object in a file, if that is there.
  template <class Use>
  void with(char const* name, Use const& use) const {
    std::error_code none;
    auto const path = (directory_ / name).string();
    if (std::filesystem::is_regular_file(path, none)) {
      auto const tree = read_json(path, key_);
      use(Fields{*tree, fmt::format("{}={}", key_, path), ""});
    }
  }

 private:
  std::filesystem::path directory_;
  std::string key_;
};

/// A token's text: a text, or an object with "content"; nothing if the field is absent.
std::optional<std::string> token_text(Fields& fields, char const* name) {
  if (!fields.has(name)) {
    return std::nullopt;
  }
  if (fields.value(name).is_object()) {
    return fields.object(name).text("content");
  }
  return fields.text(name);
}

/// The field eos_token_id: one number, or several.
std::vector<std::int32_t> ends_in(Fields& fields) {
  constexpr char const* name = "eos_token_id";
  std::vector<std::int32_t> ends;
  if (!fields.has(name)) {
    return ends;
  }
  json const& value = fields.value(name);
  if (!value.is_array()) {
    return {token_number(fields, name, value)};
  }
  for (json const& each : value) {
    ends.push_back(token_number(fields, name, each));
  }
  return ends;
}

/// The field added_tokens_decoder: {"32000": {"content": "<|im_end|>", ...}, ...}.
void read_decoder(Fields& fields, Beside& beside) {
  constexpr char const* name = "added_tokens_decoder";
  if (!fields.has(name)) {
    return;
  }
  auto decoder = fields.object(name);
  for (auto const& [number, token] : fields.value(name).items()) {
    std::int32_t value{};
    auto const [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc{} || end != number.data() + number.size()) {
      fields.fail(name, "has the key " + printable_name(number) + ", which is no number");
    }
    beside.tokens.push_back(
        {decoder.object(number.c_str()).text("content"), value, "tokenizer_config.json"});
  }
}

}  // namespace

Beside read_beside(std::string const& path, std::string const& key) {
  Files const files{path, key};
  Beside beside;
  std::optional<std::string> pad;
  files.with("tokenizer_config.json", [&](Fields fields) {
    beside.add_begin = fields.flag("add_bos_token", false);
    beside.add_end = fields.flag("add_eos_token", false);
    beside.end = token_text(fields, "eos_token");
    pad = token_text(fields, "pad_token");
    read_decoder(fields, beside);
  });
  files.with("special_tokens_map.json", [&](Fields fields) {
    if (!beside.end) {
      beside.end = token_text(fields, "eos_token");
    }
  });
  files.with("added_tokens.json", [&](Fields fields) {
    json const& tokens = fields.whole_object();
    for (auto const& [text, number] : tokens.items()) {
      beside.tokens.push_back(
          {text, token_number(fields, text.c_str(), number), "added_tokens.json"});
    }
  });
  for (char const* const name : {"generation_config.json", "config.json"}) {
    if (beside.ends.empty()) {
      files.with(name, [&](Fields fields) { beside.ends = ends_in(fields); });
    }
  }
  std::erase_if(beside.tokens, [&](Beside::Token const& token) { return token.text == pad; });
  return beside;
}

void require_tokens(data::Tokenizer const& tokenizer, Beside const& beside, std::string const& path,
                    std::string const& key) {
  for (Beside::Token const& token : beside.tokens) {
    auto const number = tokenizer.token(token.text);
    if (number != token.number) {
      throw DataError{fmt::format(
          "{}={}: {} '{}' {}, but {} beside it has {}; write both as one tokenizer.json with "
          "transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
          key, path, number ? "has token" : "has no token", printable_name(token.text),
          number ? fmt::format("as {}", *number) : "of its own", token.file, token.number)};
    }
  }
}

}  // namespace offstage::tokens
