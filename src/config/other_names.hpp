#pragma once

#include <span>
#include <string_view>
#include <utility>

namespace offstage::config {

/// Words of other tools, each with the key that does the same.
/// Source: the options of Megatron-LM, of transformers (TrainingArguments, config.json), TRL,
/// DeepSpeed, torchtitan and nanoGPT.
[[nodiscard]] std::span<std::pair<std::string_view, std::string_view> const> other_names();

/// Words of other tools for which there is no key, each with a sentence that says what there is in
/// its place.
/// Source: the options of Megatron-LM, of transformers, DeepSpeed, torchtitan, PEFT and
/// torchrun.
[[nodiscard]] std::span<std::pair<std::string_view, std::string_view> const> words_without_key();

/// Substitute for another tool's word: a key, or else a sentence; both empty: the word is not
/// known.
struct InPlaceOfWord {
  std::string_view key;
  std::string_view sentence;
};
/// For `learning-rate` the key optimizer.lr. `_` is `-`. A word with sections is looked for as a
/// whole, then without the first one, and so on.
[[nodiscard]] InPlaceOfWord in_place_of(std::string_view word);

}  // namespace offstage::config
