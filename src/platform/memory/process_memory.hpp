#pragma once

#include "base/units.hpp"

namespace offstage::memory {

/// Resident memory of this process now, and its highest value so far (VmRSS, VmHWM).
[[nodiscard]] Bytes resident_bytes();
[[nodiscard]] Bytes peak_resident_bytes();

/// What a node can still give: MemAvailable, or what the cgroup (v1 or v2) leaves if that is less.
[[nodiscard]] Bytes available_bytes();

}  // namespace offstage::memory
