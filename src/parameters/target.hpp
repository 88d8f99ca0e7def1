#pragma once

#include <functional>

#include "kernels/optimizer/optimizer.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::parameters {

/// Where a subgroup's new parameters go.
struct Target {
  /// View of the subgroup's elements. They are as they were, where the state has the lower halves of
  /// parameters alone.
  kernels::WorkingCopyView view;
  /// In memory that kernels of the device may write; else in host memory.
  bool on_device = true;
  /// Lease of the view, to be committed when the view is written. Nothing is to commit if nobody owns it.
  tiers::Lease lease{};
};

/// Gives a subgroup's target to the thread that updates it, which has its gradient and its state then, and
/// lacks nothing else. Threads: any.
using Targets = std::function<Target(state::Subgroup const&)>;

}  // namespace offstage::parameters
