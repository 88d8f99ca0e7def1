#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.hpp"

namespace offstage::pack {

/// Bytes, and two tokens that have names: 300 for <s>, which begins texts, and 301 for </s>.
class NamedBytes final : public data::Tokenizer {
 public:
  [[nodiscard]] std::int64_t vocab() const override { return 302; }
  [[nodiscard]] std::unique_ptr<data::Encoder> encoder() const override {
    return bytes_->encoder();
  }
  [[nodiscard]] std::string decode(std::span<std::int32_t const> tokens) const override {
    return bytes_->decode(tokens);
  }
  [[nodiscard]] std::optional<std::int32_t> end_of_document() const override { return 301; }
  [[nodiscard]] data::Frame frame() const override { return {.before = {300}, .behind = {}}; }
  [[nodiscard]] std::optional<std::int32_t> token(std::string_view text) const override {
    return text == "<s>" ? std::optional{300} : text == "</s>" ? std::optional{301} : std::nullopt;
  }
  [[nodiscard]] std::string name_of(std::int32_t token) const override {
    return token == 300 ? "<s>" : token == 301 ? "</s>" : "";
  }

 private:
  std::unique_ptr<data::Tokenizer> bytes_ = data::open_tokenizer("bytes", "");
};

}  // namespace offstage::pack
