#pragma once

#include <string>

#include "base/units.hpp"

namespace offstage::train {

/// The bytes that a storage path's drives take, in words: "14.5 GiB written a step, 15.7 TiB a
/// day". With the path's endurance the words say how long it lasts at this pace: ", which uses up
/// endurance in 38 days". `written`: bytes a step. `step`: more than 0.
[[nodiscard]] std::string wear_in_words(Bytes written, Seconds step, Bytes endurance);

}  // namespace offstage::train
