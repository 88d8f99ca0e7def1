#include "tokens/open_tokenizer.hpp"

#include <filesystem>
#include <system_error>

#include "tokens/json_tokenizer.hpp"

namespace offstage::tokens {

std::unique_ptr<data::Tokenizer> open_tokenizer(std::string const& name, std::string const& key) {
  std::error_code none;
  if (std::filesystem::is_directory(name, none)) {
    return open_json_tokenizer((std::filesystem::path{name} / "tokenizer.json").string(), key);
  }
  if (name.ends_with(".json")) {
    return open_json_tokenizer(name, key);
  }
  return data::open_tokenizer(name, key);
}

}  // namespace offstage::tokens
