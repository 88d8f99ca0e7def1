#include "tokens/read_json.hpp"

#include "base/units.hpp"
#include "data/input_file.hpp"

namespace offstage::tokens {
namespace {

/// Tokenizers have megabytes; whatever is larger is a mistake that shall not fill the memory.
constexpr Bytes largest_file = GiB;

}  // namespace

huggingface::JsonTree read_json(std::string const& path, std::string const& key) {
  data::InputFile const file{path, key};
  auto const text = data::read_whole(file, largest_file, "is too large for a tokenizer's file");
  return huggingface::parse_object(text, file.name());
}

}  // namespace offstage::tokens
