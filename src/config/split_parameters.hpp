#pragma once

#include "config/run_config.hpp"

namespace offstage::config {

/// The meaning of tiers.split-parameters for a run: whether the working copy holds the upper halves of the parameters, and
/// the state their lower halves alone. From the configuration alone, so all ranks agree.
///
/// It takes a bf16 working copy that whoever updates can read without new traffic: in host memory, or on a device whose
/// memory the host sees. `auto` splits where state waits on storage, if besides updates do not begin under backward (the
/// old halves of what may be taken back would take the memory that caches as much as the split saves) and checkpoints
/// refer to no extents (a persistent tiers.path): they hold whole parameters.
/// device.kind=auto counts as the emulated device: a run settles it first.
/// Errors: UsageError: tiers.split-parameters=on, where that is not possible.
[[nodiscard]] bool splits_parameters(RunConfig const& config);

/// Makes a run do so, or not: sets optimizer.split_parameter, with which nothing is persistent.
void settle_split_parameters(RunConfig& config);

}  // namespace offstage::config
