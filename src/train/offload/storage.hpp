#pragma once

#include "config/run_config.hpp"

namespace offstage::train {

/// Refuses a tiers.path in host memory unless tiers.allow-tmpfs=true: the plan would count the
/// state as stored, and the node would run out of memory. Refuses two of the same directory,
/// symbolic links followed. Errors: UsageError.
void require_storage(config::RunConfig const& config);

/// Removes what killed runs left in each tiers.path, and says so; reports (log) what looks like it
/// and is not this host's or user's to remove. For one rank of a node.
void tidy_storage(config::RunConfig const& config);

}  // namespace offstage::train
