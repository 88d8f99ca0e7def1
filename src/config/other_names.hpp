#pragma once

#include <span>
#include <string_view>
#include <utility>

namespace offstage::config {

/// Words of other tools, each with the key that does the same.
/// Source: the options of Megatron-LM, of transformers (TrainingArguments, config.json) and nanoGPT.
[[nodiscard]] std::span<std::pair<std::string_view, std::string_view> const> other_names();

/// The key that does what other tools call `word`: `learning-rate` is optimizer.lr. A section before
/// the word is left out of account, and `_` is `-`. Empty if no tool's word is known.
[[nodiscard]] std::string_view key_of_other_name(std::string_view word);

}  // namespace offstage::config
