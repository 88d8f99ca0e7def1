#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/store.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::checkpoint {

/// Where a checkpoint goes when it is loaded.
struct Destination {
  RunState const& run;
  std::vector<state::Subgroup> const& subgroups;
  tiers::Tiers& tiers;
  OnSubgroup const& on_subgroup;
  SplitParameters const* split{};  ///< null: the tiers hold whole parameters
  bool has_parts =
      false;  ///< a node has its own ranks' files alone: those that are not read may be elsewhere
};

class ReadAhead;

/// What became of loading a checkpoint, the same on every rank.
struct Outcome {
  std::optional<Meta> meta;
  std::string problem;                  ///< if there is no meta
  std::shared_ptr<ReadAhead> ending{};  ///< Reader::take_ending()
};

/// Loads each rank's part of a step directory, read patiently. Collective. A refusal (master.hpp), a checkpoint that
/// the system could not read, and errors of the run's own tiers are thrown on all ranks. Every rank must have read the
/// same save: nodes that have files of their own could mix two.
[[nodiscard]] Outcome try_load(std::string const& path, Destination const& to,
                               mpi::Communicator const& comm);

/// Names of the step directories that have a master, newest first, as rank 0 sees them.
/// `without` those of rank 0. Collective.
[[nodiscard]] std::vector<std::string> candidates(std::string const& directory,
                                                  std::vector<std::string> const& without,
                                                  mpi::Communicator const& comm);

}  // namespace offstage::checkpoint
