#include "tokens/read_json.hpp"

#include <span>

#include "base/lfs_pointer.hpp"
#include "base/units.hpp"
#include "data/input_file.hpp"

namespace offstage::tokens {
namespace {

/// Tokenizers have megabytes; whatever is larger is a mistake that shall not fill the memory.
constexpr Bytes largest_file = GiB;

}  // namespace

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

}  // namespace offstage::tokens
