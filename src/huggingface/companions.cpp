#include "huggingface/companions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/regular_file.hpp"
#include "base/units.hpp"
#include "data/input_file.hpp"
#include "data/tokenizer.hpp"
#include "huggingface/file.hpp"
#include "huggingface/json_text.hpp"
#include "huggingface/names.hpp"

namespace offstage::huggingface {
namespace {

using Json = nlohmann::ordered_json;
using Tree = nlohmann::json;

constexpr Bytes largest_companion = 256 * MiB;
constexpr char const* generation_name = "generation_config.json";
constexpr char const* tokenizer_name = "tokenizer.json";
constexpr char const* pieces_name = "tokenizer.model";
constexpr char const* tokenizer_config_name = "tokenizer_config.json";
constexpr char const* templates_name = "additional_chat_templates";
constexpr std::array<std::string_view, 13> companion_names{
    "added_tokens.json", "chat_template.jinja", "chat_template.json",
    generation_name,     "merges.txt",          "special_tokens_map.json",
    "spiece.model",      "tekken.json",         tokenizer_name,
    pieces_name,         tokenizer_config_name, "vocab.json",
    "vocab.txt"};

/// A directory of companions, and how errors call it.
class Directory {
 public:
  Directory(std::string const& path, std::string const& key) : path_{path}, key_{key} {}

  [[noreturn]] void fail(std::string const& name, std::string const& problem) const {
    throw DataError{fmt::format("{}={}: {} {}", key_, path_, name, problem)};
  }
  void warn(std::string const& name, std::string const& doubt) const {
    log::warning("{}={}: {} {}", key_, path_, name, doubt);
  }
  [[nodiscard]] bool has(std::string const& name) const {
    return data::input_is_file(path_ + "/" + name, key_);
  }
  [[nodiscard]] bool has_directory(std::string const& name) const {
    return is_directory(path_ + "/" + name);
  }
  [[nodiscard]] std::string text(std::string const& name) const {
    return read_text(path_ + "/" + name, largest_companion);
  }
  /// Keeps the order of keys.
  [[nodiscard]] Json json(std::string const& name) const { return json(name, text(name)); }
  /// The JSON of a file that has this content, or will have it.
  [[nodiscard]] Json json(std::string const& name, std::string const& content) const {
    return parse<Json>(name, content);
  }
  /// The file tokenizer.json. A vocabulary takes time by the square of its tokens where order
  /// counts.
  [[nodiscard]] Tree tokenizer() const { return parse<Tree>(tokenizer_name, text(tokenizer_name)); }
  /// The SentencePiece model tokenizer.model in the place of a tokenizer.json; null if there is
  /// none.
  [[nodiscard]] std::unique_ptr<data::Tokenizer> pieces() const {
    if (has(tokenizer_name) || !has(pieces_name)) {
      return nullptr;
    }
    try {
      return data::open_tokenizer(path_ + "/" + pieces_name, key_);
    } catch (DataError const&) {
      return nullptr;  // LLaMA 3 has a list of tokens under this name
    }
  }

 private:
  template <class Any>
  [[nodiscard]] Any parse(std::string const& name, std::string const& content) const {
    auto const guard = [&](int depth, typename Any::parse_event_t, Any&) {
      if (depth > deepest_json) {
        fail(name, fmt::format("is nested more than {} levels deep", deepest_json));
      }
      return true;
    };
    auto tree = Any::parse(content, guard, false);
    if (!tree.is_object()) {
      fail(name, "holds no JSON object");
    }
    return tree;
  }

  std::string path_;
  std::string key_;
};

/// Calls `use` with text and number of each added token of a tokenizer.json.
void for_added(Tree const& tree, auto const& use) {
  auto const added = tree.find("added_tokens");
  if (added == tree.end() || !added->is_array()) {
    return;
  }
  for (auto const& one : *added) {
    if (one.is_object() && one.value("id", Tree{}).is_number_unsigned()) {
      use(one.value("content", Tree{}), one["id"].get<std::int64_t>());
    }
  }
}

/// The number of a token in tokenizer.json, or in a tokenizer.model alone, by its text.
std::int64_t number_of(Directory const& directory, std::string const& token) {
  if (auto const pieces = directory.pieces()) {
    auto const number = pieces->token(token);
    if (!number) {
      directory.fail(pieces_name, fmt::format("has no token '{}'", printable_name(token)));
    }
    return *number;
  }
  if (!directory.has(tokenizer_name)) {
    directory.fail(tokenizer_name,
                   fmt::format("is not there to look up the token '{}' in", printable_name(token)));
  }
  auto const tree = directory.tokenizer();
  std::optional<std::int64_t> number;
  for_added(tree, [&](Tree const& text, std::int64_t id) {
    if (!number && text == token) {
      number = id;
    }
  });
  if (number) {
    return *number;
  }
  auto const in_vocabulary = Tree::json_pointer{"/model/vocab"} / token;
  if (!tree.contains(in_vocabulary) || !tree[in_vocabulary].is_number_unsigned()) {
    directory.fail(tokenizer_name, fmt::format("has no token '{}'", printable_name(token)));
  }
  return tree[in_vocabulary].get<std::int64_t>();
}

/// The text of a token in tokenizer_config.json, which is a text or an object with content; null if
/// it says nothing.
Json text_in(Json const& config, char const* name) {
  auto const value = config.value(name, Json{});
  return value.is_object() ? value.value("content", Json{}) : value;
}

/// Number of tokens in a tokenizer.json: the largest number and one, or the length of Unigram's
/// list. 0 if it has no vocabulary. An added token `pad` stands in no text and does not count.
std::int64_t tokens_in(Tree const& tree, std::optional<std::string> const& pad) {
  std::int64_t tokens = 0;
  for_added(tree, [&](Tree const& text, std::int64_t id) {
    tokens = pad && text == *pad ? tokens : std::max(tokens, id + 1);
  });
  Tree::json_pointer const place{"/model/vocab"};
  if (!tree.contains(place)) {
    return tokens;
  }
  auto const& vocabulary = tree[place];
  if (vocabulary.is_array()) {
    return std::max(tokens, static_cast<std::int64_t>(vocabulary.size()));
  }
  for (auto const& id : vocabulary) {
    if (id.is_number_unsigned()) {
      tokens = std::max(tokens, id.get<std::int64_t>() + 1);
    }
  }
  return tokens;
}

/// The text of the pad token, unless texts end with it too.
std::optional<std::string> only_pad(Directory const& directory) {
  for (char const* const name : {tokenizer_config_name, "special_tokens_map.json"}) {
    if (directory.has(name)) {
      auto const tree = directory.json(name);
      auto const pad = text_in(tree, "pad_token");
      if (pad.is_string() && pad != text_in(tree, "eos_token")) {
        return pad.get<std::string>();
      }
    }
  }
  return std::nullopt;
}

void require_fits(Directory const& directory, std::int64_t vocab) {
  auto const require_at_most = [&](std::int64_t tokens, char const* name) {
    if (tokens > vocab) {
      directory.fail(name, fmt::format("has {} tokens, but the model only {}; take the tokenizer "
                                       "that the model was trained with",
                                       tokens, vocab));
    }
  };
  if (directory.has(tokenizer_name)) {
    require_at_most(tokens_in(directory.tokenizer(), only_pad(directory)), tokenizer_name);
  } else if (auto const pieces = directory.pieces()) {
    require_at_most(pieces->vocab(), pieces_name);
  }
}

bool is_token(Json const& id, std::int64_t vocab) {
  return id.is_number_integer() && id.get<std::int64_t>() >= 0 && id.get<std::int64_t>() < vocab;
}

/// A number behind the last token: the default of a larger model, which save_pretrained wrote.
bool is_beyond(Json const& id, std::int64_t vocab) {
  return id.is_number_integer() && id.get<std::int64_t>() >= vocab;
}

/// One id, several in an array, or null.
void check_ids(Directory const& directory, std::string const& file, Json const& ids,
               std::int64_t vocab) {
  bool const good = ids.is_null() || is_token(ids, vocab) ||
                    (ids.is_array() && !ids.empty() &&
                     std::ranges::all_of(ids, [&](auto const& id) { return is_token(id, vocab); }));
  if (!good) {
    directory.fail(file, fmt::format("names the token {}, but the model has tokens 0 to {}",
                                     printable_name(ids.dump()), vocab - 1));
  }
}

/// The ids in tokenizer_config.json, each a text or an object with content.
TokenIds ids_in_tokenizer(Directory const& directory, std::int64_t vocab) {
  TokenIds ids;
  if (!directory.has(tokenizer_config_name)) {
    return ids;
  }
  auto const config = directory.json(tokenizer_config_name);
  for (auto const& [name, text] :
       {std::pair{"bos_token", &ids.bos}, {"eos_token", &ids.eos}, {"pad_token", &ids.pad}}) {
    if (auto const value = text_in(config, name); value.is_string()) {
      Json const id = number_of(directory, value.get<std::string>());
      if (text == &ids.pad && !is_token(id, vocab)) {
        continue;  // as in config.json
      }
      check_ids(directory, tokenizer_name, id, vocab);
      *text = id.dump();
    }
  }
  return ids;
}

/// The ids in a model's config.json. The tokenizer's own takes the place of one that is beyond.
TokenIds ids_in_config(Directory const& directory, std::int64_t vocab) {
  auto const config = directory.json(config_name);
  if (auto const size = config.value("vocab_size", Json{}); size.is_number_integer()) {
    auto const tokens = size.get<std::int64_t>();
    if (tokens > vocab) {
      directory.fail(config_name,
                     fmt::format("has vocab_size {}, but the model has {} tokens; name "
                                 "the model that it was tuned from",
                                 tokens, vocab));
    }
    if (tokens < vocab) {
      directory.warn(config_name, fmt::format("has vocab_size {}, and the model {} tokens: that is "
                                              "right if tokens were added to that model",
                                              tokens, vocab));
    }
  }
  TokenIds ids;
  for (auto const& [name, text] :
       {std::pair{"bos_token_id", &TokenIds::bos}, {"eos_token_id", &TokenIds::eos}}) {
    auto const value = config.value(name, Json{});
    if (is_beyond(value, vocab)) {
      ids.*text = ids_in_tokenizer(directory, vocab).*text;
      log::warning("{}: {}={} is no token of the model, which has tokens 0 to {}; it is {} now",
                   config_name, name, value.get<std::int64_t>(), vocab - 1, ids.*text);
      continue;
    }
    check_ids(directory, config_name, value, vocab);
    ids.*text = value.dump();
  }
  // Published files have -1 or a number behind the last token for no padding.
  if (auto const pad = config.value("pad_token_id", Json{}); is_token(pad, vocab)) {
    ids.pad = pad.dump();
  }
  if (auto const type = config.value("tokenizer_class", Json{}); type.is_string()) {
    ids.tokenizer_class = type.get<std::string>();
  }
  return ids;
}

/// Gives generation_config.json the model's ids where its own are beyond. Errors: DataError if it
/// has others that are none.
void settle_generation(Directory const& directory, std::int64_t vocab, Companions& companions) {
  auto tree = directory.json(generation_name);
  bool changed = false;
  for (auto const& [name, id] : {std::pair{"bos_token_id", &companions.ids.bos},
                                 {"eos_token_id", &companions.ids.eos},
                                 {"pad_token_id", &companions.ids.pad}}) {
    auto const value = tree.value(name, Json{});
    bool const any = value.is_array() && std::ranges::any_of(value, [&](Json const& one) {
                       return is_beyond(one, vocab);
                     });
    if (any || is_beyond(value, vocab)) {
      tree[name] = Json::parse(*id);
      changed = true;
    }
  }
  check_ids(directory, generation_name, tree.value("eos_token_id", Json{}), vocab);
  if (changed) {
    log::warning("{}: tokens that the model lacks are those of config.json now", generation_name);
    companions.files[generation_name] = tree.dump(2) + "\n";
  }
}

void replace_end(Directory const& directory, std::string const& eos, std::int64_t vocab,
                 Companions& companions) {
  Json const id = number_of(directory, eos);
  check_ids(directory, tokenizer_name, id, vocab);
  companions.ids.eos = id.dump();
  auto const change = [&](char const* file, char const* field, Json const& value) {
    if (auto const found = companions.files.find(file); found != companions.files.end()) {
      auto tree = directory.json(file, found->second);
      tree[field] = value;
      found->second = tree.dump(2) + "\n";
    }
  };
  change(generation_name, "eos_token_id", id);
  change(tokenizer_config_name, "eos_token", eos);
  change("special_tokens_map.json", "eos_token", eos);
}

}  // namespace

bool is_companion(std::string const& name) {
  return std::ranges::find(companion_names, name) != companion_names.end();
}

Companions read_companions(std::string const& path, std::string const& key, std::int64_t vocab,
                           std::optional<std::string> const& eos) {
  Directory const directory{path, key};
  Companions companions;
  for (std::string_view const view : companion_names) {
    std::string const name{view};
    if (directory.has(name)) {
      companions.files[name] = directory.text(name);
    }
  }
  bool const has_config = directory.has(config_name);
  if (companions.files.empty() && !has_config) {
    directory.fail("it", is_directory(path)
                             ? "has no tokenizer and no config.json; name the directory of a model"
                         : is_file(path) ? "is a file; name the directory that it lies in"
                                         : "is no directory; name that of a model");
  }
  if (companions.files.empty() && vocab != vocab_of_bytes) {
    directory.warn("it", "has no tokenizer, so the export has none");
  }
  companions.ids =
      has_config ? ids_in_config(directory, vocab) : ids_in_tokenizer(directory, vocab);
  require_fits(directory, vocab);
  if (directory.has_directory(templates_name)) {
    log::warning("{}={}: {} is not taken over; copy it beside the model", key, path,
                 templates_name);
  }
  if (directory.has(generation_name)) {
    settle_generation(directory, vocab, companions);
  }
  if (eos) {
    replace_end(directory, *eos, vocab, companions);
  }
  return companions;
}

}  // namespace offstage::huggingface
