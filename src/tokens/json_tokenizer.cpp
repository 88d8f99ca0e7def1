#include "tokens/json_tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "data/input_file.hpp"
#include "tokens/added_tokens.hpp"
#include "tokens/alphabet.hpp"
#include "tokens/beside.hpp"
#include "tokens/decoder.hpp"
#include "tokens/fields.hpp"
#include "tokens/frame.hpp"
#include "tokens/model.hpp"
#include "tokens/normalizer.hpp"
#include "tokens/pre_tokenizer.hpp"
#include "tokens/read_json.hpp"
#include "tokens/unicode.hpp"

namespace offstage::tokens {
namespace {

class JsonTokenizer final : public data::Tokenizer {
 public:
  explicit JsonTokenizer(Fields fields) {
    static_cast<void>(fields.choice("version", {"1.0"}, ""));
    fields.ignore("truncation");
    fields.ignore("padding");
    model_ = make_model(fields.object("model"));
    if (fields.has("normalizer")) {
      normalizer_ = Normalizer{fields.object("normalizer")};
    }
    if (fields.has("pre_tokenizer")) {
      pre_tokenizer_ = PreTokenizer{fields.object("pre_tokenizer")};
    }
    if (fields.has("post_processor")) {
      frame_ = read_frame(fields.object("post_processor"));
    }
    if (fields.has("decoder")) {
      decoder_ = Decoder{fields.object("decoder")};
    }
    added_.emplace(fields, *model_, normalizer_);
    fields.finish();
    vocab_ = std::ssize(model_->texts());
    if (!added_->by_number().empty()) {
      vocab_ = std::max<std::int64_t>(vocab_, added_->by_number().rbegin()->first + 1);
    }
    check_frame(fields);
  }

  void set_end(std::int32_t token) { end_ = token; }
  [[nodiscard]] AddedTokens const& added() const { return *added_; }

  [[nodiscard]] std::int64_t vocab() const override { return vocab_; }
  [[nodiscard]] std::unique_ptr<data::Encoder> encoder() const override;
  [[nodiscard]] std::optional<std::int32_t> end_of_document() const override { return end_; }
  [[nodiscard]] data::Frame frame() const override { return frame_; }
  [[nodiscard]] std::optional<std::int32_t> token(std::string_view text) const override {
    auto const* const added = added_->find(text);
    return added != nullptr ? std::optional{added->number} : model_->find(text);
  }
  [[nodiscard]] std::string name_of(std::int32_t token) const override {
    auto const index = static_cast<std::size_t>(token);
    if (auto const added = added_->by_number().find(token); added != added_->by_number().end()) {
      return added->second.text;
    }
    return index < model_->texts().size() ? model_->texts()[index].value_or("") : "";
  }

  [[nodiscard]] data::SpecialsFound specials_in(std::string_view text) const override {
    data::SpecialsFound found;
    added_->split(text, false, [&](std::string_view /*part*/, std::int32_t token) {
      if (token >= 0 && (added_->by_number().at(token).special || token == end_)) {
        found.first = found.count++ == 0 ? token : found.first;
      }
    });
    return found;
  }

  [[nodiscard]] std::string decode(std::span<std::int32_t const> tokens) const override {
    data::check_tokens(tokens, vocab_);
    std::vector<std::string> texts;
    for (std::int32_t const token : tokens) {
      auto const added = added_->by_number().find(token);
      auto const index = static_cast<std::size_t>(token);
      if (added != added_->by_number().end()) {
        if (!added->second.special) {
          texts.push_back(added->second.text);
        }
      } else if (index < model_->texts().size() && model_->texts()[index]) {
        texts.push_back(*model_->texts()[index]);
      }
    }
    return decoder_.decode(std::move(texts));
  }

 private:
  friend class JsonEncoder;

  void check_frame(Fields const& fields) const {
    for (auto const* const side : {&frame_.before, &frame_.behind}) {
      for (std::int32_t const token : *side) {
        if (token >= vocab_) {
          fields.fail("post_processor",
                      fmt::format("names token {}, but there are {}", token, vocab_));
        }
      }
    }
  }

  std::unique_ptr<Model> model_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  data::Frame frame_;
  Decoder decoder_;
  std::optional<AddedTokens> added_;
  std::int64_t vocab_{};
  std::optional<std::int32_t> end_;
};

/// Keeps what one thread has met: pieces, and the parts of long pieces.
class JsonEncoder final : public data::Encoder {
 public:
  explicit JsonEncoder(JsonTokenizer const& tokenizer) : tokenizer_{tokenizer} {}

  void encode(std::string_view text, std::vector<std::int32_t>& tokens) override {
    if (!is_valid(text)) {
      auto const valid = replace_invalid(text);
      return encode_valid(valid, tokens);
    }
    encode_valid(text, tokens);
  }
  void encode_with_cuts(std::string_view text, std::vector<std::int32_t>& tokens,
                        std::vector<data::Cut>& cuts) override {
    is_valid(text) ? encode_valid(text, tokens, &cuts) : encode(text, tokens);
  }

 private:
  /// First tokens that are found in the text as it is, then those of the normalised text.
  void encode_valid(std::string_view text, std::vector<std::int32_t>& tokens,
                    std::vector<data::Cut>* cuts = nullptr) {
    auto const before = tokens.size();
    PieceSink const sink = [&](Piece piece) { encode_piece(piece.text, tokens); };
    tokenizer_.added_->split(text, false, [&](std::string_view part, std::int32_t token) {
      if (token >= 0) {
        auto const begin = static_cast<std::size_t>(part.data() - text.data());
        if (cuts != nullptr) {
          cuts->push_back({begin, begin + part.size(), tokens.size() - before});
        }
        tokens.push_back(token);
        return;
      }
      bool const first = part.data() == text.data();
      if (tokenizer_.normalizer_.is_empty()) {
        return encode_part({part, first}, tokens, sink);
      }
      std::string normalized{part};
      bool const still_first = tokenizer_.normalizer_.apply(normalized) && first;
      encode_part({normalized, still_first}, tokens, sink);
    });
  }

  void encode_part(Piece whole, std::vector<std::int32_t>& tokens, PieceSink const& sink) {
    tokenizer_.added_->split(whole.text, true, [&](std::string_view part, std::int32_t token) {
      if (token >= 0) {
        tokens.push_back(token);
      } else {
        tokenizer_.pre_tokenizer_.split({part, whole.first && part.data() == whole.text.data()},
                                        sink);
      }
    });
  }

  void encode_piece(std::string_view piece, std::vector<std::int32_t>& tokens) {
    if (auto const known = pieces_.find(piece)) {
      tokens.insert(tokens.end(), known->begin(), known->end());
      return;
    }
    auto const before = tokens.size();
    if (tokenizer_.pre_tokenizer_.leaves_bytes()) {
      tokenizer_.model_->encode(alphabet_.spell(piece), parts_, tokens);
    } else {
      tokenizer_.model_->encode(piece, parts_, tokens);
    }
    pieces_.put(piece, std::span{tokens}.subspan(before));
  }

  JsonTokenizer const& tokenizer_;
  ByteAlphabet alphabet_;
  WordCache pieces_;
  WordCache parts_;
};

std::unique_ptr<data::Encoder> JsonTokenizer::encoder() const {
  return std::make_unique<JsonEncoder>(*this);
}

/// Warns of added tokens that tokenizer_config.json has otherwise: transformers goes by that file.
void compare_flags(AddedTokens const& added, Beside const& beside, std::string const& path,
                   std::string const& key) {
  std::vector<Beside::Token> others;
  for (Beside::Token const& token : beside.tokens) {
    auto const found = added.by_number().find(token.number);
    if (found == added.by_number().end()) {
      continue;
    }
    AddedTokens::Token const& own = found->second;
    if (token.takes_left.value_or(own.takes_left) != own.takes_left ||
        token.takes_right.value_or(own.takes_right) != own.takes_right ||
        token.single_word.value_or(own.single_word) != own.single_word) {
      others.push_back(token);
    }
  }
  if (!others.empty()) {
    log::warning(
        "{}={}: lstrip, rstrip or single_word of '{}'{} are others in {} beside it, by which "
        "transformers goes; here they are as in tokenizer.json",
        key, path, printable_name(others.front().text),
        others.size() == 1 ? "" : fmt::format(" and {} more", others.size() - 1),
        others.front().file);
  }
}

}  // namespace

std::unique_ptr<data::Tokenizer> open_json_tokenizer(std::string const& path,
                                                     std::string const& key) {
  auto const tree = read_json(path, key);
  auto tokenizer =
      std::make_unique<JsonTokenizer>(Fields{*tree, data::InputFile{path, key}.name(), ""});
  auto const beside = read_beside(path, key);
  require_tokens(*tokenizer, beside, path, key);
  compare_flags(tokenizer->added(), beside, path, key);
  if (beside.end) {
    auto const token = tokenizer->token(*beside.end);
    if (!token) {
      throw DataError{
          fmt::format("{}={}: has no token '{}', which is eos_token of the files beside it", key,
                      path, printable_name(*beside.end))};
    }
    tokenizer->set_end(*token);
  } else if (beside.ends.size() == 1 && beside.ends.front() < tokenizer->vocab()) {
    tokenizer->set_end(beside.ends.front());
  }
  return tokenizer;
}

}  // namespace offstage::tokens
