#include "tokens/open_tokenizer.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "base/error.hpp"
#include "base/regular_file.hpp"
#include "tokens/beside.hpp"
#include "tokens/json_tokenizer.hpp"

namespace offstage::tokens {

std::optional<std::string> tokenizer_file(std::string const& name) {
  if (name == "bytes") {
    return std::nullopt;
  }
  std::filesystem::path const path{name};
  if (!is_visible(name) || !is_directory(name)) {
    return name;
  }
  auto const there = [&](char const* file) { return is_there((path / file).string()); };
  bool const as_model = !there("tokenizer.json") && there("tokenizer.model");
  return (path / (as_model ? "tokenizer.model" : "tokenizer.json")).string();
}

std::unique_ptr<data::Tokenizer> open_tokenizer(std::string const& name, std::string const& key) {
  auto const file = tokenizer_file(name).value_or(name);
  if (std::error_code ignored; name != "bytes" && std::filesystem::status(name, ignored).type() ==
                                                      std::filesystem::file_type::not_found) {
    throw DataError{
        fmt::format("{}={}: there is no such file or directory; name a tokenizer.json, a "
                    "SentencePiece .model or a directory with one, which hf download ORG/NAME "
                    "--local-dir DIR brings from the Hugging Face hub",
                    key, name)};
  }
  if (bool const is_in_directory = file != name; is_in_directory && !is_there(file)) {
    throw DataError{fmt::format(
        "{}={}: has no tokenizer.json and no tokenizer.model; write them with transformers: "
        "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
        key, name)};
  }
  if (file.ends_with(".json")) {
    return open_json_tokenizer(file, key);
  }
  if (name == "bytes") {
    return data::open_tokenizer(name, key);
  }
  auto const beside = read_beside(file, key);
  auto tokenizer = data::open_tokenizer(
      file, key, {.begin = beside.add_begin, .end = beside.add_end, .end_token = beside.end});
  require_tokens(*tokenizer, beside, file, key);
  return tokenizer;
}

}  // namespace offstage::tokens
