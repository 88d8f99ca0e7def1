#include "tokens/json_tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/lfs_pointer.hpp"
#include "base/printable.hpp"
#include "data/input_file.hpp"
#include "huggingface/json_text.hpp"
#include "tokens/added_tokens.hpp"
#include "tokens/alphabet.hpp"
#include "tokens/decoder.hpp"
#include "tokens/fields.hpp"
#include "tokens/frame.hpp"
#include "tokens/model.hpp"
#include "tokens/normalizer.hpp"
#include "tokens/pre_tokenizer.hpp"
#include "tokens/unicode.hpp"

namespace offstage::tokens {
namespace {

/// Tokenizers have megabytes; whatever is larger is a mistake that shall not fill the memory.
constexpr Bytes largest_file = GiB;

huggingface::JsonTree read_json(std::string const& path, std::string const& key) {
  data::InputFile const file{path, key};
  if (file.size() > largest_file) {
    file.fail("is too large for a tokenizer's file");
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span{text}));
  if (is_lfs_pointer(text)) {
    file.fail(lfs_pointer_advice);
  }
  return huggingface::parse_object(text, file.name());
}

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

 private:
  /// First tokens that are found in the text as it is, then those of the normalised text.
  void encode_valid(std::string_view text, std::vector<std::int32_t>& tokens) {
    PieceSink const sink = [&](Piece piece) { encode_piece(piece.text, tokens); };
    tokenizer_.added_->split(text, false, [&](std::string_view part, std::int32_t token) {
      if (token >= 0) {
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

/// tokenizer_config.json beside the tokenizer; null if there is none.
std::optional<std::string> config_beside(std::string const& path) {
  auto const config =
      (std::filesystem::path{path}.parent_path() / "tokenizer_config.json").string();
  return std::filesystem::exists(config) ? std::optional{config} : std::nullopt;
}

/// "eos_token" of tokenizer_config.json beside the tokenizer, a text or an object with "content".
std::optional<std::string> end_token_beside(std::string const& path, std::string const& key) {
  auto const found = config_beside(path);
  if (!found) {
    return std::nullopt;
  }
  std::string const& config = *found;
  auto const tree = read_json(config, key);
  Fields fields{*tree, data::InputFile{config, key}.name(), ""};
  if (!fields.has("eos_token")) {
    return std::nullopt;
  }
  if (fields.value("eos_token").is_object()) {
    return fields.object("eos_token").text("content");
  }
  return fields.text("eos_token");
}

}  // namespace

std::unique_ptr<data::Tokenizer> open_json_tokenizer(std::string const& path,
                                                     std::string const& key) {
  auto const tree = read_json(path, key);
  auto tokenizer =
      std::make_unique<JsonTokenizer>(Fields{*tree, data::InputFile{path, key}.name(), ""});
  if (auto const end = end_token_beside(path, key)) {
    auto const token = tokenizer->token(*end);
    if (!token) {
      throw DataError{fmt::format(
          "{}={}: has no token '{}', which tokenizer_config.json beside it names as eos_token", key,
          path, printable_name(*end))};
    }
    tokenizer->set_end(*token);
  }
  return tokenizer;
}

data::Around around_beside(std::string const& path, std::string const& key) {
  auto const config = config_beside(path);
  if (!config) {
    return {};
  }
  auto const tree = read_json(*config, key);
  Fields fields{*tree, data::InputFile{*config, key}.name(), ""};
  return {.begin = fields.flag("add_bos_token", false), .end = fields.flag("add_eos_token", false)};
}

}  // namespace offstage::tokens
