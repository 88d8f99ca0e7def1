#pragma once

#include <cstdint>
#include <string>

#include "base/units.hpp"
#include "checkpoint/store.hpp"
#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

// Checks that checkpoint.dir has room for the checkpoints of a run. A run that cannot save reports
// it at its start, not after days. `mine` is the space of this rank's part of a checkpoint
// (checkpoint::space_for).

/// The free bytes of a directory of checkpoints. Unless `count` of `each` bytes have room there,
/// directories of saves that did not finish are removed first. The caller holds the directory's
/// lock. Errors: IoError.
[[nodiscard]] Bytes make_room(std::string const& directory, std::int64_t count, Bytes each);

/// Checks that there is room for one checkpoint. Collective. Errors: IoError, as mpi::AgreedError.
void require_space(config::RunConfig const& config, mpi::Communicator const& comm, Bytes mine);

/// Looks at the space for all checkpoints that may be there at a time from `step` on, if any are
/// saved before the run's end. Collective. Errors: as look_at_space, as mpi::AgreedError.
void look_at_space_to_come(config::RunConfig const& config, mpi::Communicator const& comm,
                           Bytes mine, checkpoint::Store const& store, std::int64_t step);

/// Warns if `free` bytes are too few for `more` further checkpoints of `each` bytes that may be
/// there at a time.
/// Errors: IoError instead of a warning if a path is persistent, because its slots would run short
///         within a step.
void look_at_space(config::RunConfig const& config, std::int64_t more, Bytes each, Bytes free);

}  // namespace offstage::train
