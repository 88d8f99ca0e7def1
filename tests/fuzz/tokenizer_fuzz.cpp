// A tokenizer.json, as bytes: what is accepted turns texts into tokens of its vocabulary, and those
// back into some text.
#include <array>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "memory_file.hpp"
#include "tokens/json_tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace offstage;
  constexpr std::array<std::string_view, 4> texts{
      "", "It's 3 words.\n\n  <|end|> Ünïcode, 日本 \xf0\x9f\x98\x80 and a\tb", "\xff\xc3 broken",
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
  MemoryFile const memory{data, size};
  try {
    auto const tokenizer = tokens::open_json_tokenizer(memory.path(), "--tokenizer");
    auto const encoder = tokenizer->encoder();
    for (std::string_view const text : texts) {
      std::vector<std::int32_t> found;
      encoder->encode(text, found);
      for (std::int32_t const token : found) {
        if (token < 0 || token >= tokenizer->vocab()) {
          __builtin_trap();
        }
      }
      static_cast<void>(tokenizer->decode(found));
    }
  } catch (DataError const&) {
  }
  return 0;
}
