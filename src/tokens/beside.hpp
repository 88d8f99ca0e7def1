#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.hpp"

namespace offstage::tokens {

/// Statements of the files beside a tokenizer about it, as transformers reads them.
struct Beside {
  bool add_begin = false;          ///< add_bos_token of tokenizer_config.json
  bool add_end = false;            ///< its add_eos_token
  std::optional<std::string> end;  ///< eos_token there, or in special_tokens_map.json
  /// eos_token_id of generation_config.json, or without one of config.json: tokens at which a model ends its text.
  std::vector<std::int32_t> ends;
  struct Token {
    std::string text;
    std::int32_t number{};
    std::string file;  ///< name of the file that has it
  };
  /// Tokens of added_tokens_decoder in tokenizer_config.json and of added_tokens.json, but for the pad
  /// token, which stands in no text.
  std::vector<Token> tokens;
};

/// Reads the files beside `path`, that of a tokenizer; those that are not there say nothing.
/// Errors: DataError naming `key` and the file if one is no JSON or has other values.
[[nodiscard]] Beside read_beside(std::string const& path, std::string const& key);

/// Errors: DataError naming `key`, `path` and the first of these tokens that the tokenizer lacks or has
///         by another number: its text would become other tokens.
void require_tokens(data::Tokenizer const& tokenizer, Beside const& beside, std::string const& path,
                    std::string const& key);

}  // namespace offstage::tokens
