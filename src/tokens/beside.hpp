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
  std::optional<std::string> pad;  ///< pad_token there
  /// eos_token_id of generation_config.json, or without one of config.json: tokens at which a model
  /// ends its text.
  std::vector<std::int32_t> ends;
  struct Token {
    std::string text;
    std::int32_t number{};
    std::string file;  ///< name of the file that has it
    /// Blanks that it takes, and whether it is a word of its own, where the file says so.
    std::optional<bool> takes_left{}, takes_right{}, single_word{};
  };
  /// Tokens of added_tokens_decoder in tokenizer_config.json and of added_tokens.json, but for the
  /// pad token, which stands in no text.
  std::vector<Token> tokens;
  /// Texts of further special tokens in tokenizer_config.json: bos_token and the additional ones.
  std::vector<std::string> special;
};

/// Reads the files beside `path`, that of a tokenizer; those that are not there say nothing.
/// Errors: DataError naming `key` and the file if one is no JSON or has other values.
[[nodiscard]] Beside read_beside(std::string const& path, std::string const& key);

/// Warns of special tokens that the tokenizer lacks, whose texts stay texts here.
/// Errors: DataError naming `key`, `path` and the first of the tokens with numbers that the
///         tokenizer lacks or has by another number: its text would become other tokens.
void require_tokens(data::Tokenizer const& tokenizer, Beside const& beside, std::string const& path,
                    std::string const& key);

/// Number of tokens that may stand in texts: without a pad token behind all others.
[[nodiscard]] std::int64_t vocab_of_texts(data::Tokenizer const& tokenizer, Beside const& beside);

}  // namespace offstage::tokens
