#pragma once

#include <cstdint>
#include <optional>

#include "data/input_file.hpp"
#include "data/token_file.hpp"

namespace offstage::data {

/// llm.c's files begin with 256 int32: magic, version, number of tokens, zeros.
constexpr Bytes llmc_header_bytes = 1024;
constexpr std::int32_t llmc_magic_u16 = 20240520;
constexpr std::int32_t llmc_version_u16 = 1;
constexpr std::int32_t llmc_magic_u32 = 20240801;
constexpr std::int32_t llmc_version_u32 = 7;

struct LlmcHeader {
  TokenType type{};
  std::int64_t tokens{};
};

/// The type of tokens that a file with this magic holds; nullopt: no such file.
[[nodiscard]] std::optional<TokenType> llmc_type(std::int32_t magic);

/// Reads the header and checks it against the file's size.
/// Source: llm.c, dev/data/data_common.py.
/// Errors: DataError naming field, value and what would be right.
[[nodiscard]] LlmcHeader read_llmc_header(ByteSource const& file);

}  // namespace offstage::data
