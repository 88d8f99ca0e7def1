#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/state_layout.hpp"
#include "base/units.hpp"
#include "checkpoint/meta.hpp"
#include "checkpoint/node_file.hpp"
#include "checkpoint/save_rate.hpp"
#include "checkpoint/split_parameters.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::checkpoint {

/// Storage space that write_rank_file may take.
[[nodiscard]] Bytes space_for(StateLayout const& layout,
                              std::vector<state::Subgroup> const& subgroups);

/// The pace of a save that goes on beside updates. Updates begin when everything but held versions
/// is written.
struct Drain {
  SaveRate rate{};                     ///< rate at which held versions are written
  std::atomic<bool> const* hurries{};  ///< once true: there is no limit any more
  /// Called once by the thread that writes, when only held versions are left.
  std::function<void()> only_held_is_left{};

  /// Returns whether this save holds versions in the tiers. If not, versions that are held belong
  /// to another save.
  [[nodiscard]] bool holds() const { return rate.bytes_per_second > 0.0; }
};

/// The manner in which a rank's files are written.
struct Manner {
  /// Given if the tiers have another layout, with split parameters. They are joined on their way, a
  /// piece at a time, and no extent is given away. Null: the tiers have the checkpoint's layout.
  SplitParameters const* split{};
  /// Path through which the state is written; null: it is written past all paths.
  tiers::StoragePath* path{};
  NodeFile* node{};        ///< the ranks of the node write one file; null: this rank has its own
  std::uint32_t number{};  ///< the save's number, for `node`
  Drain drain{};
  /// Once true, the save throws before the next subgroup; null: it goes to its end.
  std::atomic<bool> const* given_up{};
};

/// The files that a rank saved.
struct RankFiles {
  std::string manifest;  ///< text of the manifest
  Bytes copied{};
  Bytes referred{};  ///< bytes of extent files that the tiers gave away
  Seconds paused{};  ///< time of pauses for Drain::rate
};

/// Writes this rank's file, or its part of the node's, and its manifest into a step directory and
/// makes both and their names durable. An extent that the tiers give away becomes an extent file,
/// durable too. The rest of the state goes straight from the leases into the file, one lease at a
/// time. HDF5's own contents are read back and compared. Versions that the tiers hold for this save
/// come last, paced as `drain` says, and are released one by one. While the save keeps to its rate,
/// other transfers go first on the paths that it uses. `layout` is the checkpoint's.
/// Errors: IoError; errors of the tiers; Error if given up; FailedElsewhere.
[[nodiscard]] RankFiles write_rank_file(std::string const& step_directory, int rank, int ranks,
                                        StateLayout const& layout,
                                        std::vector<state::Subgroup> const& subgroups,
                                        tiers::Tiers& tiers, Manner const& manner = {});

/// Makes a checkpoint of a step directory in which every rank has written its files: writes the
/// master under another name, syncs, reads it back, renames, syncs the directories. `manifests` are
/// the ranks' texts in rank order; Meta::ranks is their number, and Meta::state describes their
/// state. `is_local`: of level 1, where each node has its own ranks' files alone, and readers
/// without Offstage are shown no tensors; nor are they where can_show says no. Otherwise this
/// process must see the files of all ranks, `patience` later at the latest: NFS knows for up to a
/// minute what a directory held before.
/// Errors: IoError; DataError for a manifest that readers would refuse, as one beyond 256 MiB.
void commit_master(std::string const& step_directory, Meta const& meta,
                   std::vector<std::string> const& manifests, bool is_local = false,
                   Seconds patience = Seconds{60});

/// Gives a complete checkpoint of level 2 another Meta::configuration. Its state and everything
/// else stay, and its old master is there until the new one is durable. One of a format before
/// format_of_two_layers stays as it is. For one process.
/// Errors: IoError, DataError: it cannot be read or written, and is as before.
void rewrite_configuration(std::string const& step_directory, std::string const& configuration);

}  // namespace offstage::checkpoint
