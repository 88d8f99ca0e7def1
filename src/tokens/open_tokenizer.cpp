#include "tokens/open_tokenizer.hpp"

#include <filesystem>
#include <system_error>

#include "tokens/json_tokenizer.hpp"

namespace offstage::tokens {

std::optional<std::string> tokenizer_file(std::string const& name) {
  if (name == "bytes") {
    return std::nullopt;
  }
  std::error_code none;
  return std::filesystem::is_directory(name, none)
             ? (std::filesystem::path{name} / "tokenizer.json").string()
             : name;
}

std::unique_ptr<data::Tokenizer> open_tokenizer(std::string const& name, std::string const& key) {
  auto const file = tokenizer_file(name).value_or(name);
  if (file.ends_with(".json")) {
    return open_json_tokenizer(file, key);
  }
  return data::open_tokenizer(file, key);
}

}  // namespace offstage::tokens
