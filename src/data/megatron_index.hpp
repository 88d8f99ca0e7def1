#pragma once

#include <cstdint>
#include <functional>

#include "data/input_file.hpp"
#include "data/token_file.hpp"

namespace offstage::data {

/// Contents of PATH.idx, which describes PATH.bin.
struct MegatronIndex {
  TokenType type{};
  std::int64_t tokens{};
  std::int64_t documents{};  ///< documents that have tokens
};

/// Bytes of an index before its lengths.
constexpr Bytes megatron_header_bytes = 34;
/// First bytes of an index; the zero at the end belongs to them.
constexpr char megatron_magic[] = "MMIDIDX\0";
/// The code of a type in an index. Errors: PreconditionError for u32, which has none.
[[nodiscard]] std::uint8_t megatron_code(TokenType type);

/// Reads an index and checks all of it against the tokens' file of `data_bytes`: magic, version 1,
/// a type of whole numbers, its own size, lengths that lie one behind the other and fill the file,
/// documents that ascend from sequence 0 to the last. Calls `on_document`, if there is one, with
/// the first token of every document that has tokens.
/// Source: Megatron-LM, core/datasets/indexed_dataset.py.
/// Memory: a small buffer, whatever the index says.
/// Errors: DataError naming field, value and what would be right.
[[nodiscard]] MegatronIndex read_megatron_index(
    ByteSource const& index, Bytes data_bytes,
    std::function<void(std::int64_t)> const& on_document = {});

}  // namespace offstage::data
