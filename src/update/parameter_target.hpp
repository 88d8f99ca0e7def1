#pragma once

#include <functional>
#include <span>

#include "state/shard.hpp"
#include "tiers/tiers.hpp"
#include "update/views.hpp"

namespace offstage::update {

/// Where a subgroup's new parameters go.
struct ParameterTarget {
  /// View of the subgroup's elements. They are as they were, where the state has the lower halves of
  /// parameters alone.
  WorkingCopyView view;
  /// In memory that kernels of the device may write; else in host memory.
  bool on_device = true;
  /// Lease of the view, to be committed when the view is written. Nothing is to commit if nobody owns it.
  tiers::Lease lease{};
};

/// Gives a subgroup's target to the thread that updates it, which has its gradient and its state then, and
/// lacks nothing else. Threads: any.
using ParameterTargets = std::function<ParameterTarget(state::Subgroup const&)>;

/// Targets inside the working copy of a whole shard, in device memory.
/// Errors: PreconditionError: the copy is shorter than the shard.
[[nodiscard]] ParameterTargets targets_in(WorkingCopyView const& shard,
                                          std::span<state::Subgroup const> subgroups);

}  // namespace offstage::update
