#pragma once

#include <span>
#include <string_view>
#include <utility>

namespace offstage::config {

/// Words of other tools, each with the key that does the same.
/// Source: the options of Megatron-LM, of transformers (TrainingArguments, config.json), TRL,
/// DeepSpeed and nanoGPT.
[[nodiscard]] std::span<std::pair<std::string_view, std::string_view> const> other_names();

/// Words of other tools for which there is no key, each with a sentence that says what there is in
/// its place.
/// Source: the options of Megatron-LM, of transformers, DeepSpeed, PEFT and torchrun.
[[nodiscard]] std::span<std::pair<std::string_view, std::string_view> const> words_without_key();

/// The key that does what other tools call `word`: `learning-rate` is optimizer.lr. `_` is `-`. A
/// word that is unknown with its sections is looked for without the first ones. Empty if no tool's
/// word is known, or a longer part of it is one of words_without_key().
[[nodiscard]] std::string_view key_of_other_name(std::string_view word);
/// The sentence of words_without_key(), looked for in the same way. Empty if there is none.
[[nodiscard]] std::string_view instead_of_key(std::string_view word);

}  // namespace offstage::config
