#pragma once

#include <string>

#include "base/units.hpp"

namespace offstage::train {

/// What the drives behind a storage path take, in words: "14.5 GiB written a step, 15.7 TiB a day".
/// If their endurance is given (tiers.path's endurance), also how long it lasts at this pace:
/// ", which uses up endurance in 38 days". `written`: bytes a step. `step`: more than 0.
[[nodiscard]] std::string wear_in_words(Bytes written, Seconds step, Bytes endurance);

}  // namespace offstage::train
