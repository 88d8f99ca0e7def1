#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace offstage::checkpoint {

/// The rule by which complete checkpoints stay.
struct Retention {
  int keep = 2;                 ///< number of newest ones that stay; at least 1
  std::int64_t keep_every = 0;  ///< every one whose step is a multiple of this stays too; 0: none

  [[nodiscard]] bool keeps_for_good(std::int64_t step) const {
    return keep_every > 0 && step % keep_every == 0;
  }
};

/// Renames `directory`/`name` to a free name that starts with "passed-over-", durably. So nothing
/// is lost, and no restart takes it again. Does nothing if it is not there. Returns false, and logs
/// it, if it cannot be done.
bool set_aside(std::string const& directory, std::string const& name);

/// Writes the names that this save passes over, but its own, into a list in the new directory of
/// `step`. Removes the lists of earlier saves. The list is in force as soon as the checkpoint is
/// complete: if the process dies before it has set all of them aside, the next start does the rest.
/// Errors: IoError.
void list_passed_over(std::string const& directory, std::int64_t step,
                      std::vector<std::string> const& names);

/// Sets aside the checkpoints on such lists, in checkpoints with a master, but for `spared` (a
/// canonical path). Returns the names that could not be set aside, which are logged. Errors:
/// IoError.
[[nodiscard]] std::vector<std::string> set_listed_aside(std::string const& directory,
                                                        std::string const& spared);

/// Removes the lists. The caller has set aside every checkpoint on them. Errors: IoError.
void remove_lists(std::string const& directory);

/// Checkpoints (canonical paths) that the starts which saved them keep for good, as their own
/// configuration says.
struct KeptBefore {
  std::vector<std::string> by_interval;  ///< at a step of their checkpoint.keep-every
  std::string best;                      ///< the newest one of a checkpoint.keep-best; empty: none
};
/// Reads the masters of checkpoints up to `step`, but for those that `retention` keeps for good. A
/// damaged one is kept by nobody. Errors: IoError.
[[nodiscard]] KeptBefore kept_before(std::string const& directory, Retention const& retention,
                                     std::int64_t step);

/// The largest number of further checkpoints that a run from `step` to `last` may hold at a time:
/// those that `retention` keeps, those kept for good, and one while it is written. The `spared`
/// (canonical paths) stay beside them. Errors: IoError.
[[nodiscard]] std::int64_t most_to_come(std::string const& directory, Retention const& retention,
                                        std::int64_t step, std::int64_t last,
                                        std::vector<std::string> const& spared);

/// Removes the directories of steps below `end` that have no master: killed saves and removals left
/// them. Errors: IoError.
void remove_unfinished(std::string const& directory,
                       std::int64_t end = std::numeric_limits<std::int64_t>::max());

/// The paths that the caller is to remove: complete checkpoints beyond those that `retention`
/// keeps, of which that of step `saved` is the newest, and broken ones older than it. Only sound
/// checkpoints count as kept: those in `sound` (canonical paths), which this run wrote or loaded,
/// and those with no problem beside the state (problem_beside_state), which are added to `sound`.
/// Checkpoints kept for good do not count, nor do the `spared` (canonical paths), which stay. A
/// checkpoint that is not sound or cannot be read stays too. Paths to remove are taken out of
/// `sound`. Errors: IoError.
[[nodiscard]] std::vector<std::string> superfluous(std::string const& directory,
                                                   Retention const& retention, std::int64_t saved,
                                                   std::vector<std::string> const& spared,
                                                   std::set<std::string>& sound);

}  // namespace offstage::checkpoint
