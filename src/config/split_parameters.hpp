#pragma once

#include "config/run_config.hpp"

namespace offstage::config {

/// Returns the meaning of tiers.split-parameters for a run: whether the working copy holds the
/// upper halves of the parameters, and the state only their lower halves. It depends on the
/// configuration alone, so all ranks agree.
///
/// Splitting needs a bf16 working copy that the updating side can read without new traffic: in host
/// memory, or on a device whose memory the host sees. `auto` splits if state waits on storage, and
/// two other conditions hold. Updates do not begin under backward, because the old halves of
/// updates that may be reverted would take the memory that caches as much as the split saves.
/// Checkpoints refer to no extents (a persistent tiers.path), because they hold whole parameters.
/// device.kind=auto counts as the emulated device: a run settles it first.
/// Errors: UsageError: tiers.split-parameters=on, and splitting is not possible.
[[nodiscard]] bool splits_parameters(RunConfig const& config);

/// Returns whether a checkpoint may take extents of the state by reference, which split parameters
/// forbid: a path is persistent, saves are paced, or there is a level 1.
[[nodiscard]] bool may_refer_to_extents(RunConfig const& config);

/// Settles it for a run: sets optimizer.split_parameter. With it no path is persistent or nearby.
void settle_split_parameters(RunConfig& config);

}  // namespace offstage::config
