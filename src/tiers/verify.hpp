#pragma once

#include <cstdint>

namespace offstage::tiers {

/// tiers.verify: which fetches from storage compare the checksum.
enum class Verify { always, sample, off };
/// `sample` verifies one read in so many.
constexpr std::int64_t verify_sample = 16;

}  // namespace offstage::tiers
