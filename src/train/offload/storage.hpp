#pragma once

#include <string>

#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

/// Refuses a tiers.path in host memory unless tiers.allow-tmpfs=true, because the plan would count
/// the state as stored, and the node would run out of memory. Refuses two paths of the same
/// directory; symbolic links are followed.
/// Errors: UsageError.
void require_storage(config::RunConfig const& config);

/// Removes files that killed runs left in each tiers.path, and logs it. Logs similar files that
/// belong to another host or user, and leaves them. For one rank of a node.
void tidy_storage(config::RunConfig const& config);

/// The name of this rank's spill directories (tiers::spill_name).
[[nodiscard]] std::string spill_of(config::RunConfig const& config, mpi::Communicator const& comm);

}  // namespace offstage::train
