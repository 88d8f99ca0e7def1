#include "data/llmc_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

namespace offstage::data {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

std::optional<TokenType> llmc_type(std::int32_t magic) {
  switch (magic) {
    case llmc_magic_u16:
      return TokenType::u16;
    case llmc_magic_u32:
      return TokenType::u32;
    default:
      return std::nullopt;
  }
}

LlmcHeader read_llmc_header(ByteSource const& file) {
  std::array<std::int32_t, 3> header{};
  auto const bytes = std::as_writable_bytes(std::span{header});
  Bytes const size = file.size();
  file.read(
      0, bytes.first(static_cast<std::size_t>(std::min(size, static_cast<Bytes>(bytes.size())))));
  auto const [magic, version, tokens] = header;
  auto const type = llmc_type(magic);
  if (!type) {
    file.fail(fmt::format("magic {} is not that of llm.c, which is {} for u16 and {} for u32",
                          magic, llmc_magic_u16, llmc_magic_u32));
  }
  if (size < llmc_header_bytes) {
    file.fail(fmt::format("ends after {} of the header's {} bytes; copy it again", size,
                          llmc_header_bytes));
  }
  auto const known = *type == TokenType::u16 ? llmc_version_u16 : llmc_version_u32;
  if (version != known) {
    file.fail(
        fmt::format("version {} is not known; version {} is for magic {}", version, known, magic));
  }
  if (tokens <= 0) {
    file.fail(fmt::format("the header counts {} tokens; a file has 1 or more", tokens));
  }
  Bytes const expected = llmc_header_bytes + tokens * size_of(*type);
  if (size != expected) {
    file.fail(fmt::format(
        "the header counts {} tokens of type {}, which make {} bytes, but the file has {}; copy it "
        "again",
        tokens, name_of(*type), expected, size));
  }
  return {*type, tokens};
}

}  // namespace offstage::data
