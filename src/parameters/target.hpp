#pragma once

#include <functional>
#include <span>

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

/// Targets inside the working copy of a whole shard, in device memory.
/// Errors: PreconditionError: the copy is shorter than the shard.
[[nodiscard]] Targets targets_in(kernels::WorkingCopyView const& shard,
                                 std::span<state::Subgroup const> subgroups);

}  // namespace offstage::parameters
