#pragma once

#include "kernels/optimizer/optimizer.hpp"
#include "tiers/tiers.hpp"
#include "update/gradients/held_gradients.hpp"

namespace offstage::update {

/// Where a gradient's view points to.
enum class GradientPlace { host, device };

/// The accumulated gradient of one subgroup, until it ends.
struct GradientLease {
  tiers::Lease lease;
  kernels::GradientView view;  ///< an element for each of the subgroup's
  /// device: held there (held_gradients.hpp), without a lease.
  GradientPlace place = GradientPlace::host;
  HeldGradients::Reading reading{};
};

}  // namespace offstage::update
