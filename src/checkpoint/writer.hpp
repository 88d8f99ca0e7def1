#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "base/state_layout.hpp"
#include "base/units.hpp"
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
  bool holds =
      false;  ///< what the tiers hold is this save's; else it is another's, which this one does not see
  double bytes_per_second{};                  ///< of what they hold; 0: no limit
  std::atomic<bool> const* hurries{};         ///< once true: no limit any more
  std::function<void()> only_held_is_left{};  ///< called once, by the thread that writes
};

/// What a rank saved.
struct RankFiles {
  std::string manifest;  ///< its text
  Bytes copied{};
  Bytes referred{};  ///< in extent files that were the tiers'
};

/// Writes this rank's file and manifest into a step directory and makes both and their names
/// durable. What the tiers share becomes an extent file, durable too; the rest of the state goes
/// straight from the leases into the rank file, one lease at a time. What HDF5 wrote is read back and
/// compared. Once *given_up is true it throws before the next subgroup; null: it never is.
/// What the tiers hold for this save comes last, paced as `drain` says, and is released one by one.
/// `layout` is the checkpoint's. `split`: that of the tiers is another, whose parameters are joined on their way, a piece
/// at a time, and nothing is shared; null: they are the same.
/// Errors: IoError; whatever the tiers throw; Error if given up.
[[nodiscard]] RankFiles write_rank_file(std::string const& step_directory, int rank, int ranks,
                                        StateLayout const& layout,
                                        std::vector<state::Subgroup> const& subgroups,
                                        tiers::Tiers& tiers,
                                        std::atomic<bool> const* given_up = nullptr,
                                        SplitParameters const* split = nullptr,
                                        Drain const& drain = {});

/// Makes a checkpoint of a step directory in which every rank has written its files: writes the
/// master under another name, syncs, reads it back, renames, syncs the directories. `manifests` are
/// the ranks' texts in rank order; Meta::ranks is their number, Meta::state what they hold. `shows_tensors`: to
/// whoever reads the master without Offstage. Errors: IoError.
void commit_master(std::string const& step_directory, Meta const& meta,
                   std::vector<std::string> const& manifests, bool shows_tensors = true);

}  // namespace offstage::checkpoint
