#pragma once

#include <iterator>
#include <memory>
#include <vector>

#include "tiers/virtual_tiers.hpp"

namespace offstage::tiers {

/// Tiers with every extent in host memory.
[[nodiscard]] inline std::unique_ptr<Tiers> make_host_tiers(
    std::vector<Bytes> const& extent_bytes) {
  VirtualSettings settings;
  settings.cached = std::ssize(extent_bytes);
  return make_virtual_tiers(extent_bytes, settings);
}

}  // namespace offstage::tiers
