// A template, a line of three dashes, then conversations: a JSON object on each line.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "../pack/named_bytes.hpp"
#include "base/error.hpp"
#include "memory_file.hpp"
#include "pack/conversation.hpp"
#include "pack/template.hpp"

namespace {

using namespace offstage;

void require_tokens(data::Tokenizer const& tokenizer, std::vector<std::int32_t> const& tokens) {
  for (std::int32_t const token : tokens) {
    if (token < 0 || token >= tokenizer.vocab()) {
      __builtin_trap();
    }
  }
}

void encode(pack::ConversationEncoder& encoder, data::Tokenizer const& tokenizer,
            pack::Conversation const& conversation) {
  auto const encoded = encoder.encode(conversation.messages);
  require_tokens(tokenizer, encoded.tokens);
  bool const any_learns =
      std::ranges::any_of(conversation.messages, [](pack::Message const& m) { return m.learns; });
  bool const any_counts = std::ranges::any_of(encoded.mask, [](auto mask) { return mask != 0; });
  if (encoded.tokens.size() != encoded.mask.size() || (any_counts && !any_learns)) {
    __builtin_trap();
  }
  require_tokens(tokenizer, encoder.prompt(conversation.messages));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string_view const input{reinterpret_cast<char const*>(data), size};
  constexpr std::string_view between = "\n---\n";
  auto const end = std::min(input.find(between), size);
  MemoryFile const file{data, end};
  pack::NamedBytes const tokenizer;
  try {
    auto const form = pack::read_template(file.path(), "--template", tokenizer);
    pack::ConversationEncoder encoder{form, tokenizer};
    for (auto at = end + between.size(); at < size;) {
      auto const line_end = std::min(input.find('\n', at), size);
      auto const line = input.substr(at, line_end - at);
      at = line_end + 1;
      try {
        encode(encoder, tokenizer, pack::read_conversation(line, "messages", form, "line"));
      } catch (DataError const&) {
      }
    }
  } catch (DataError const&) {
  }
  return 0;
}
