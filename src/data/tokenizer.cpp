#include "data/tokenizer.hpp"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <cstddef>

#include "base/error.hpp"
#include "base/printable.hpp"
#include "data/character_map.hpp"
#include "data/input_file.hpp"

namespace offstage::data {
namespace {

[[noreturn]] void refuse(std::int32_t token, std::int64_t vocab) {
  throw DataError{fmt::format(
      "token {} is none of the tokenizer's {}; take the tokenizer that the model was trained with",
      token, vocab)};
}

class ByteEncoder final : public Encoder {
 public:
  void encode(std::string_view text, std::vector<std::int32_t>& tokens) override {
    auto const before = tokens.size();
    tokens.resize(before + text.size());
    std::ranges::transform(text, tokens.begin() + static_cast<std::ptrdiff_t>(before),
                           [](char c) { return static_cast<unsigned char>(c); });
  }
};

class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::int64_t vocab() const override { return 256; }
  [[nodiscard]] std::unique_ptr<Encoder> encoder() const override {
    return std::make_unique<ByteEncoder>();
  }
  [[nodiscard]] std::string decode(std::span<std::int32_t const> tokens) const override {
    check_tokens(tokens, vocab());
    std::string text(tokens.size(), '\0');
    std::ranges::transform(tokens, text.begin(),
                           [](std::int32_t t) { return static_cast<char>(t); });
    return text;
  }
  [[nodiscard]] std::optional<std::int32_t> end_of_document() const override {
    return std::nullopt;
  }
  [[nodiscard]] bool takes_bytes() const override { return true; }
  [[nodiscard]] std::optional<std::int32_t> token(std::string_view /*text*/) const override {
    return std::nullopt;
  }
  [[nodiscard]] std::string name_of(std::int32_t /*token*/) const override { return {}; }
};

/// Models have megabytes; whatever is larger is a mistake that shall not fill the memory.
constexpr Bytes largest_model = GiB;

class SentencePieceEncoder final : public Encoder {
 public:
  explicit SentencePieceEncoder(sentencepiece::SentencePieceProcessor const& processor)
      : processor_{processor} {}

  void encode(std::string_view text, std::vector<std::int32_t>& tokens) override {
    std::vector<int> found;
    auto const status = processor_.Encode({text.data(), text.size()}, &found);
    if (!status.ok()) {
      throw DataError{fmt::format("SentencePiece cannot encode this text: {}", status.message())};
    }
    tokens.insert(tokens.end(), found.begin(), found.end());
  }

 private:
  sentencepiece::SentencePieceProcessor const& processor_;
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string const& path, std::string const& key, Around const& around) {
    InputFile const file{path, key};
    auto const model =
        read_whole(file, largest_model,
                   "is too large for a SentencePiece model; name a .model file, or bytes");
    if (!has_sound_character_maps(model)) {
      file.fail("is no SentencePiece model, or its table of characters is damaged");
    }
    auto const status = processor_.LoadFromSerializedProto(model);
    if (!status.ok() || processor_.GetPieceSize() < 1) {
      file.fail("is no SentencePiece model; name a .model file, or bytes");
    }
    if (processor_.eos_id() >= 0) {
      end_ = processor_.eos_id();
    }
    if (around.end_token && !(end_ = token(*around.end_token))) {
      file.fail(fmt::format("has no token '{}', which is eos_token of the files beside it",
                            printable_name(*around.end_token)));
    }
    if (around.begin && processor_.bos_id() >= 0) {
      frame_.before.push_back(processor_.bos_id());
    }
    if (around.end && end_) {
      frame_.behind.push_back(*end_);
    }
  }

  [[nodiscard]] std::int64_t vocab() const override { return processor_.GetPieceSize(); }

  [[nodiscard]] std::unique_ptr<Encoder> encoder() const override {
    return std::make_unique<SentencePieceEncoder>(processor_);
  }

  [[nodiscard]] std::string decode(std::span<std::int32_t const> tokens) const override {
    check_tokens(tokens, vocab());
    std::string text;
    auto const status = processor_.Decode(std::vector<int>{tokens.begin(), tokens.end()}, &text);
    if (!status.ok()) {
      throw DataError{
          fmt::format("SentencePiece cannot decode these tokens: {}", status.message())};
    }
    return text;
  }

  [[nodiscard]] std::optional<std::int32_t> end_of_document() const override { return end_; }

  // Called by the constructor, too.
  [[nodiscard]] std::optional<std::int32_t> token(std::string_view text) const final {
    int const id = processor_.PieceToId({text.data(), text.size()});
    bool const known = id >= 0 && processor_.IdToPiece(id) == text;
    return known ? std::optional{id} : std::nullopt;
  }
  [[nodiscard]] std::string name_of(std::int32_t token) const override {
    return processor_.IdToPiece(token);
  }
  [[nodiscard]] Frame frame() const override { return frame_; }

 private:
  sentencepiece::SentencePieceProcessor processor_;
  std::optional<std::int32_t> end_;
  Frame frame_;
};

}  // namespace

void check_tokens(std::span<std::int32_t const> tokens, std::int64_t vocab) {
  for (auto const token : tokens) {
    if (token < 0 || token >= vocab) {
      refuse(token, vocab);
    }
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  encoder()->encode(text, tokens);
  return tokens;
}

std::unique_ptr<Tokenizer> open_tokenizer(std::string const& name, std::string const& key,
                                          Around const& around) {
  if (name == "bytes") {
    return std::make_unique<ByteTokenizer>();
  }
  return std::make_unique<SentencePieceTokenizer>(name, key, around);
}

}  // namespace offstage::data
