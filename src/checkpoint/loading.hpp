#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/meta.hpp"
#include "checkpoint/run_state.hpp"
#include "checkpoint/split_parameters.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::checkpoint {

/// The destination of a checkpoint that is loaded.
struct Destination {
  RunState const& run;
  std::vector<state::Subgroup> const& subgroups;
  tiers::Tiers& tiers;
  OnSubgroup const& on_subgroup;
  SplitParameters const* split{};  ///< null: the tiers hold whole parameters
  /// A node has the files of its own ranks alone; files that it does not read may be elsewhere.
  bool has_parts = false;
};

class ReadAhead;

/// The outcome of loading a checkpoint, the same on every rank.
struct Outcome {
  std::optional<Meta> meta;
  std::string problem;                  ///< why it failed; if there is no meta
  std::shared_ptr<ReadAhead> ending{};  ///< Reader::take_ending()
};

/// Loads each rank's part of a step directory, and reads it patiently (patience.hpp). Every rank
/// must have read the same save, for nodes with files of their own could mix two. Collective.
/// Errors: on all ranks: a refusal (master.hpp), IoError if the system could not read the
///         checkpoint, and errors of the run's own tiers.
[[nodiscard]] Outcome try_load(std::string const& path, Destination const& to,
                               mpi::Communicator const& comm);

/// Names of the step directories that have a master, newest first, as rank 0 sees them. Leaves out
/// the names in rank 0's `without`. Collective.
[[nodiscard]] std::vector<std::string> candidates(std::string const& directory,
                                                  std::vector<std::string> const& without,
                                                  mpi::Communicator const& comm);

}  // namespace offstage::checkpoint
