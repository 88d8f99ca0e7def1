#pragma once

#include <string_view>

namespace offstage::data {

/// Returns whether SentencePiece can use a model's tables of characters (precompiled_charsmap),
/// which it does not check: a step in a forged one may lead anywhere in memory. False too for a
/// model that is no message of protobuf.
[[nodiscard]] bool has_sound_character_maps(std::string_view model);

}  // namespace offstage::data
