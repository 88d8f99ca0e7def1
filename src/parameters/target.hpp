#pragma once

#include <functional>

#include "kernels/optimizer/optimizer.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::parameters {

/// The place of a subgroup's new parameters.
struct Target {
  /// View of the subgroup's elements. With split parameters it has the upper halves that the update
  /// needs.
  kernels::WorkingCopyView view;
  /// The view is in memory that kernels of the device may write; else in host memory.
  bool on_device = true;
  /// Lease of the view, to be committed when the view is written. It is empty if there is nothing
  /// to commit.
  tiers::Lease lease{};
};

/// Gives a subgroup's target to the thread that updates it. That thread has the gradient and the
/// state already, and needs nothing else. Threads: any.
using Targets = std::function<Target(state::Subgroup const&)>;

}  // namespace offstage::parameters
