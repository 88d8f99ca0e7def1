#include "tensorboard/crc32c.hpp"

#include <array>
#include <bit>

namespace offstage::tensorboard {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  constexpr std::uint32_t reversed_polynomial = 0x82F63B78U;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) {
      rest = (rest >> 1U) ^ ((rest & 1U) != 0 ? reversed_polynomial : 0U);
    }
    table[byte] = rest;
  }
  return table;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr auto table = make_table();
  std::uint32_t rest = 0xFFFFFFFFU;
  for (char const byte : bytes) {
    rest = (rest >> 8U) ^ table[(rest ^ static_cast<unsigned char>(byte)) & 0xFFU];
  }
  return ~rest;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8U;
}

}  // namespace offstage::tensorboard
