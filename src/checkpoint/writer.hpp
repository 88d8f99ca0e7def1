#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/state_layout.hpp"
#include "base/units.hpp"
#include "checkpoint/node_file.hpp"
#include "checkpoint/split_parameters.hpp"
#include "checkpoint/store.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"

namespace offstage::checkpoint {

/// Space that write_rank_file may take.
[[nodiscard]] Bytes space_for(StateLayout const& layout,
                              std::vector<state::Subgroup> const& subgroups);

/// How a save goes on beside updates: those begin when what the tiers do not hold is written.
struct Drain {
  SaveRate rate{};                            ///< of what they hold
  std::atomic<bool> const* hurries{};         ///< once true: no limit any more
  std::function<void()> only_held_is_left{};  ///< called once, by the thread that writes

  /// Whether what the tiers hold is this save's; else it is another's, which this one does not see.
  [[nodiscard]] bool holds() const { return rate.bytes_per_second > 0.0; }
};

/// How a rank's files are written.
struct Manner {
  /// The layout of the tiers is another, whose parameters are joined on their way, a piece at a
  /// time, and nothing is shared; null: it is the checkpoint's.
  SplitParameters const* split{};
  tiers::StoragePath* path{};  ///< through which the state is written; null: past all paths
  NodeFile* node{};        ///< the ranks of the node write one file; null: this rank has its own
  std::uint32_t number{};  ///< of the save, for `node`
  Drain drain{};
  std::atomic<bool> const*
      given_up{};  ///< once true it throws before the next subgroup; null: it never is
};

/// What a rank saved.
struct RankFiles {
  std::string manifest;  ///< its text
  Bytes copied{};
  Bytes referred{};  ///< in extent files that were the tiers'
  Seconds paused{};  ///< for Drain::rate
};

/// Writes this rank's file, or its part of the node's, and its manifest into a step directory and
/// makes both and their names durable. What the tiers share becomes an extent file, durable too;
/// the rest of the state goes straight from the leases into the file, one lease at a time. What
/// HDF5 wrote is read back and compared. What the tiers hold for this save comes last, paced as `drain` says, and
/// is released one by one. While it keeps to its rate, transfers of others go first on the paths
/// that it uses. `layout` is the checkpoint's.
/// Errors: IoError; whatever the tiers throw; Error if given up; FailedElsewhere.
[[nodiscard]] RankFiles write_rank_file(std::string const& step_directory, int rank, int ranks,
                                        StateLayout const& layout,
                                        std::vector<state::Subgroup> const& subgroups,
                                        tiers::Tiers& tiers, Manner const& manner = {});

/// Makes a checkpoint of a step directory in which every rank has written its files: writes the
/// master under another name, syncs, reads it back, renames, syncs the directories. `manifests` are
/// the ranks' texts in rank order; Meta::ranks is their number, Meta::state what they hold. `shows_tensors`: to
/// whoever reads the master without Offstage. Errors: IoError.
void commit_master(std::string const& step_directory, Meta const& meta,
                   std::vector<std::string> const& manifests, bool shows_tensors = true);

}  // namespace offstage::checkpoint
