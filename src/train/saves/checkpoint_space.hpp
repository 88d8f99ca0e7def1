#pragma once

#include <cstdint>

#include "base/units.hpp"
#include "checkpoint/store.hpp"
#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

// Whether checkpoint.dir has room for what a run will save: one that cannot save shall say so at
// its start, not after days. `mine`: of this rank's part of a checkpoint (checkpoint::space_for).

/// There is room for one. Collective. Errors: IoError, as mpi::AgreedError.
void require_space(config::RunConfig const& config, mpi::Communicator const& comm, Bytes mine);

/// Looks at the space for all that may be there at a time from `step` on, if any are saved on the
/// way. Collective. Errors: as look_at_space, as mpi::AgreedError.
void look_at_space_to_come(config::RunConfig const& config, mpi::Communicator const& comm,
                           Bytes mine, checkpoint::Store const& store, std::int64_t step);

/// Warns if `free` bytes do not take the `more` checkpoints of `each` bytes that may come to be
/// there at a time. Errors: IoError instead if a path is persistent: its slots would run short
/// within a step.
void look_at_space(config::RunConfig const& config, std::int64_t more, Bytes each, Bytes free);

}  // namespace offstage::train
