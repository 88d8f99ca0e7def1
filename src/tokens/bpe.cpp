#include "tokens/bpe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/printable.hpp"
#include "tokens/merging.hpp"
#include "tokens/pair_table.hpp"
#include "tokens/unicode.hpp"
#include "tokens/vocabulary.hpp"

namespace offstage::tokens {
namespace {

struct Settings {
  std::optional<std::int32_t> unknown;
  bool fuse_unknown{};
  bool byte_fallback{};
  bool ignore_merges{};
  std::string prefix;  ///< of every character but a word's first
  std::string suffix;  ///< of a word's last character

  [[nodiscard]] bool plain() const { return prefix.empty() && suffix.empty(); }
};

/// The two texts of one merge, "a b" or ["a", "b"].
std::pair<std::string, std::string> merge_texts(Fields const& fields, nlohmann::json const& merge,
                                                std::size_t index) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (merge.is_string()) {
    auto const& text = merge.get_ref<std::string const&>();
    auto const space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  auto const shown = merge.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  fields.fail("merges", fmt::format("number {} is {}, but two texts are expected", index,
                                    printable_name(shown)));
}

class Bpe final : public Model {
 public:
  explicit Bpe(Fields& fields)
      : vocabulary_{fields, "vocab"}, merges_{fields.value("merges").size()} {
    read_settings(fields);
    read_characters();
    bytes_ = byte_tokens(*this);
    read_merges(fields);
  }

  void encode(std::string_view piece, WordCache& cache,
              std::vector<std::int32_t>& tokens) const override {
    if (settings_.ignore_merges) {
      if (auto const whole = vocabulary_.find(piece)) {
        tokens.push_back(*whole);
        return;
      }
    }
    std::vector<std::int32_t> symbols;
    add_symbols(piece, symbols);
    if (!cuts_) {
      return encode_run(symbols, nullptr, tokens);
    }
    // Short pieces are in a cache of their own.
    WordCache* const runs = piece.size() > WordCache::longest_key ? &cache : nullptr;
    std::span<std::int32_t const> rest{symbols};
    while (!rest.empty()) {
      std::size_t size = 1;
      while (size < rest.size() && neighbours_.find(rest[size - 1], rest[size]).rank >= 0) {
        ++size;
      }
      encode_run(rest.first(size), runs, tokens);
      rest = rest.subspan(size);
    }
  }

  [[nodiscard]] std::vector<std::optional<std::string>> const& texts() const override {
    return vocabulary_.texts();
  }
  [[nodiscard]] std::optional<std::int32_t> find(std::string_view text) const override {
    return vocabulary_.find(text);
  }

 private:
  void read_settings(Fields& fields) {
    if (fields.has("dropout") && fields.value("dropout") != 0.0) {
      fields.fail("dropout",
                  "merges that are left out at random are not known here; null is expected");
    }
    if (fields.has("unk_token")) {
      auto const text = fields.text("unk_token");
      settings_.unknown = vocabulary_.find(text);
      if (!settings_.unknown) {
        fields.fail("unk_token",
                    fmt::format("'{}' is no token of the vocabulary", printable_name(text)));
      }
    }
    settings_.fuse_unknown = fields.flag("fuse_unk", false);
    settings_.byte_fallback = fields.flag("byte_fallback", false);
    settings_.ignore_merges = fields.flag("ignore_merges", false);
    settings_.prefix = fields.text("continuing_subword_prefix", "");
    settings_.suffix = fields.text("end_of_word_suffix", "");
  }

  void read_characters() {
    for (std::size_t i = 0; i < vocabulary_.texts().size(); ++i) {
      auto const& text = vocabulary_.texts()[i];
      if (text && !text->empty() && character_bytes(text->front()) == text->size()) {
        std::size_t at = 0;
        auto const character = next_character(*text, at);
        characters_.resize(std::max<std::size_t>(characters_.size(), character + 1), -1);
        characters_[character] = static_cast<std::int32_t>(i);
      }
    }
  }

  void read_merges(Fields& fields) {
    auto const& all = fields.value("merges");
    if (!all.is_array()) {
      fields.fail("merges", "an array is expected");
    }
    neighbours_ = PairTable{all.size()};
    cuts_ = settings_.plain();
    std::int32_t rank = 0;
    for (nlohmann::json const& one : all) {
      if (one.is_string() && one.get_ref<std::string const&>().starts_with("#version")) {
        continue;
      }
      auto const index = static_cast<std::size_t>(rank);
      auto const [left_text, right_text] = merge_texts(fields, one, index);
      auto const left = token_of(fields, left_text, index);
      auto const right = token_of(fields, right_text, index);
      if (right_text.size() < settings_.prefix.size()) {
        fields.fail("merges", fmt::format("number {} lacks the continuing_subword_prefix", index));
      }
      auto const joined = left_text + right_text.substr(settings_.prefix.size());
      merges_.put(left, right, {rank++, token_of(fields, joined, index)});
      add_neighbours(left, right);
    }
  }

  std::int32_t token_of(Fields const& fields, std::string const& text, std::size_t index) const {
    auto const found = vocabulary_.find(text);
    if (!found) {
      fields.fail("merges",
                  fmt::format("number {} needs the token '{}', which the vocabulary does not have",
                              index, printable_name(text)));
    }
    return *found;
  }

  /// The characters that this merge joins. A merge of tokens that stand for no character of their
  /// text tells nothing, and no piece is cut then.
  void add_neighbours(std::int32_t left, std::int32_t right) {
    for (auto const token : {left, right}) {
      cuts_ =
          cuts_ && token != settings_.unknown && std::ranges::find(bytes_, token) == bytes_.end();
    }
    std::string_view const before = *vocabulary_.texts()[static_cast<std::size_t>(left)];
    std::string_view const behind = *vocabulary_.texts()[static_cast<std::size_t>(right)];
    cuts_ = cuts_ && !before.empty() && !behind.empty();
    if (cuts_) {
      std::size_t end = before.size();
      std::size_t begin = 0;
      auto const last = token_of_character(previous_character(before, end));
      auto const first = token_of_character(next_character(behind, begin));
      if (last >= 0 && first >= 0) {
        neighbours_.put(last, first, {0, 0});
      }
    }
  }

  [[nodiscard]] std::int32_t token_of_character(char32_t character) const {
    return character < characters_.size() ? characters_[character] : -1;
  }

  /// A character's text, where it stands in its word.
  [[nodiscard]] std::string marked(std::string_view piece, std::size_t begin,
                                   std::size_t end) const {
    std::string text = begin == 0 ? std::string{} : settings_.prefix;
    text += piece.substr(begin, end - begin);
    return end == piece.size() ? text + settings_.suffix : text;
  }

  /// Appends the tokens of these bytes; false if one is missing.
  bool add_bytes(std::string_view bytes, std::vector<std::int32_t>& symbols) const {
    auto const before = symbols.size();
    for (char const byte : bytes) {
      auto const token = bytes_[static_cast<unsigned char>(byte)];
      if (token < 0) {
        symbols.resize(before);
        return false;
      }
      symbols.push_back(token);
    }
    return true;
  }

  /// The tokens to begin with. A token for unknown characters comes before the next known one only,
  /// after bytes that stand between: so it is in the `tokenizers` package.
  void add_symbols(std::string_view piece, std::vector<std::int32_t>& symbols) const {
    symbols.reserve(piece.size());
    bool const plain = settings_.plain();
    bool pending = false;
    for (std::size_t at = 0; at < piece.size();) {
      std::size_t const begin = at;
      auto const character = next_character(piece, at);
      auto const with_marks = plain ? std::string{} : marked(piece, begin, at);
      auto const text = plain ? piece.substr(begin, at - begin) : std::string_view{with_marks};
      auto const token =
          plain ? token_of_character(character) : vocabulary_.find(text).value_or(-1);
      if (token >= 0) {
        if (pending) {
          symbols.push_back(*settings_.unknown);
        }
        pending = false;
        symbols.push_back(token);
      } else if (settings_.byte_fallback && add_bytes(text, symbols)) {
        continue;
      } else if (settings_.unknown) {
        if (pending && !settings_.fuse_unknown) {
          symbols.push_back(*settings_.unknown);
        }
        pending = true;
      }
    }
    if (pending) {
      symbols.push_back(*settings_.unknown);
    }
  }

  void encode_run(std::span<std::int32_t const> symbols, WordCache* cache,
                  std::vector<std::int32_t>& tokens) const {
    if (symbols.size() == 1) {
      tokens.push_back(symbols.front());
      return;
    }
    std::string_view const key{reinterpret_cast<char const*>(symbols.data()), symbols.size_bytes()};
    if (cache != nullptr) {
      if (auto const known = cache->find(key)) {
        tokens.insert(tokens.end(), known->begin(), known->end());
        return;
      }
    }
    std::vector<std::int32_t> merged{symbols.begin(), symbols.end()};
    merge_all(merges_, merged);
    tokens.insert(tokens.end(), merged.begin(), merged.end());
    if (cache != nullptr) {
      cache->put(key, merged);
    }
  }

  Settings settings_;
  Vocabulary vocabulary_;
  PairTable merges_;
  PairTable neighbours_{0};  ///< pairs of characters that a merge may join
  bool cuts_{};
  std::vector<std::int32_t> characters_;  ///< tokens of single characters, -1 for none
  std::vector<std::int32_t> bytes_;
};

}  // namespace

std::unique_ptr<Model> make_bpe(Fields& fields) {
  return std::make_unique<Bpe>(fields);
}

}  // namespace offstage::tokens
