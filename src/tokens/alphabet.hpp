#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace offstage::tokens {

/// The alphabet of byte-level tokenizers (GPT-2): every byte is a character that can be seen,
/// printable ones of Latin-1 themselves, the others U+0100 and on.
class ByteAlphabet {
 public:
  ByteAlphabet();
  /// Each byte as its character.
  [[nodiscard]] std::string spell(std::string_view bytes) const;
  /// Appends the bytes that a text spells; the text itself if one of its characters is not of the
  /// alphabet.
  void append_bytes(std::string& bytes, std::string_view text) const;

 private:
  static constexpr std::size_t characters = 0x144;
  std::array<std::string, 256> spelling_;
  std::array<int, characters> byte_of_{};  ///< -1 for characters that are no byte
};

}  // namespace offstage::tokens
