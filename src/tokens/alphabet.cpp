#include "tokens/alphabet.hpp"

#include "tokens/unicode.hpp"

namespace offstage::tokens {

ByteAlphabet::ByteAlphabet() {
  byte_of_.fill(-1);
  char32_t spare = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    bool const itself =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    char32_t const character = itself ? byte : spare++;
    append_character(spelling_[byte], character);
    byte_of_[character] = static_cast<int>(byte);
  }
}

std::string ByteAlphabet::spell(std::string_view bytes) const {
  std::string text;
  text.reserve(2 * bytes.size());
  for (char const byte : bytes) {
    text += spelling_[static_cast<unsigned char>(byte)];
  }
  return text;
}

void ByteAlphabet::append_bytes(std::string& bytes, std::string_view text) const {
  auto const before = bytes.size();
  for (std::size_t at = 0; at < text.size();) {
    auto const character = next_character(text, at);
    if (character >= characters || byte_of_[character] < 0) {
      bytes.resize(before);
      bytes += text;
      return;
    }
    bytes += static_cast<char>(byte_of_[character]);
  }
}

}  // namespace offstage::tokens
