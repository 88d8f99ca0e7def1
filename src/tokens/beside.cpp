#include "tokens/beside.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/text.hpp"
#include "data/input_file.hpp"
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
    auto const path = (directory_ / name).string();
    if (data::input_is_file(path, key_)) {
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

/// Adds the text of a token, or those of a list; other values name no token.
void add_texts(Fields& fields, char const* name, std::vector<std::string>& texts) {
  if (!fields.has(name)) {
    return;
  }
  json const& value = fields.value(name);
  for (json const& each : value.is_array() ? value : json::array({value})) {
    json const text = each.is_object() ? each.value("content", json{}) : each;
    if (text.is_string()) {
      texts.push_back(text.get<std::string>());
    }
  }
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
    auto const value = number_in<std::int32_t>(number);
    if (!value) {
      fields.fail(name, "has the key " + printable_name(number) + ", which is no number");
    }
    Fields one = decoder.object(number.c_str());
    auto const flag = [&](char const* which) {
      return one.has(which) ? std::optional{one.flag(which, false)} : std::nullopt;
    };
    beside.tokens.push_back({.text = one.text("content"),
                             .number = *value,
                             .file = "tokenizer_config.json",
                             .takes_left = flag("lstrip"),
                             .takes_right = flag("rstrip"),
                             .single_word = flag("single_word")});
  }
}

}  // namespace

Beside read_beside(std::string const& path, std::string const& key) {
  Files const files{path, key};
  Beside beside;
  files.with("tokenizer_config.json", [&](Fields fields) {
    beside.add_begin = fields.flag("add_bos_token", false);
    beside.add_end = fields.flag("add_eos_token", false);
    beside.end = token_text(fields, "eos_token");
    beside.pad = token_text(fields, "pad_token");
    add_texts(fields, "bos_token", beside.special);
    add_texts(fields, "additional_special_tokens", beside.special);
    add_texts(fields, "extra_special_tokens", beside.special);
    read_decoder(fields, beside);
  });
  files.with("special_tokens_map.json", [&](Fields fields) {
    if (!beside.end) {
      beside.end = token_text(fields, "eos_token");
    }
  });
  files.with("added_tokens.json", [&](Fields const& fields) {
    json const& tokens = fields.whole_object();
    for (auto const& [text, number] : tokens.items()) {
      beside.tokens.push_back({.text = text,
                               .number = token_number(fields, text.c_str(), number),
                               .file = "added_tokens.json"});
    }
  });
  for (char const* const name : {"generation_config.json", "config.json"}) {
    if (beside.ends.empty()) {
      files.with(name, [&](Fields fields) { beside.ends = ends_in(fields); });
    }
  }
  std::erase_if(beside.tokens,
                [&](Beside::Token const& token) { return token.text == beside.pad; });
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
  std::vector<std::string> lacking;
  std::ranges::copy_if(beside.special, std::back_inserter(lacking), [&](std::string const& text) {
    return text != beside.pad && !tokenizer.token(text);
  });
  if (!lacking.empty()) {
    log::warning(
        "{}={}: has no token '{}'{}, which tokenizer_config.json beside it names: it stays text "
        "here, where transformers has a token behind the vocabulary",
        key, path, printable_name(lacking.front()),
        lacking.size() == 1 ? "" : fmt::format(" and {} more", lacking.size() - 1));
  }
}

std::int64_t vocab_of_texts(data::Tokenizer const& tokenizer, Beside const& beside) {
  std::int64_t const all = tokenizer.vocab();
  bool const is_only_pad = beside.pad && beside.pad != beside.end &&
                           std::ranges::find(beside.special, *beside.pad) == beside.special.end();
  return is_only_pad && tokenizer.token(*beside.pad) == all - 1 ? all - 1 : all;
}

}  // namespace offstage::tokens
