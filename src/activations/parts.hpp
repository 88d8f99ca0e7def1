#pragma once

#include "base/units.hpp"

namespace offstage::activations {

/// Places of parts in host memory are multiples of this.
constexpr Bytes part_alignment = 4 * KiB;
/// Bytes of one copy at most. A longer part takes several.
constexpr Bytes most_at_a_time = 64 * MiB;

}  // namespace offstage::activations
