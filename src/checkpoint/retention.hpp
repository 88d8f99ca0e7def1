#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace offstage::checkpoint {

/// Which complete checkpoints stay.
struct Retention {
  int keep = 2;                 ///< the newest; at least 1
  std::int64_t keep_every = 0;  ///< and every one whose step is a multiple of this; 0: none

  [[nodiscard]] bool keeps_for_good(std::int64_t step) const {
    return keep_every > 0 && step % keep_every == 0;
  }
};

/// Renames `directory`/`name` to a free name that starts with "passed-over-", durably: nothing is
/// lost, and no restart takes it again. Does nothing if it is not there. False, and said so (log),
/// if it cannot be done.
bool set_aside(std::string const& directory, std::string const& name);

/// Leaves in the new directory of `step` the names that its save passes over, its own excepted, and
/// removes what earlier saves left so. The list is in force as soon as the checkpoint is complete: a
/// process that dies before it has set them aside leaves the rest to the next start. Errors: IoError.
void list_passed_over(std::string const& directory, std::int64_t step,
                      std::vector<std::string> const& names);

/// Sets aside what such lists in checkpoints with a master name, the `spared` (a canonical path)
/// excepted. The names that could not be, said so (log), are returned. Errors: IoError.
[[nodiscard]] std::vector<std::string> set_listed_aside(std::string const& directory,
                                                        std::string const& spared);

/// Removes the lists: all that they name is set aside. Errors: IoError.
void remove_lists(std::string const& directory);

/// How many checkpoints more than are there now a run from `step` to `last` may hold at a time:
/// those that `retention` keeps, those kept for good, and one while it is written. The `spared`
/// (canonical paths) stay beside them. Errors: IoError.
[[nodiscard]] std::int64_t most_to_come(std::string const& directory, Retention const& retention,
                                        std::int64_t step, std::int64_t last,
                                        std::vector<std::string> const& spared);

/// The paths of complete checkpoints beyond the newest that `retention` keeps, of which the one of step
/// `saved` is the first, and of what is broken and older than that: for the caller to remove. Only sound ones count as kept: those that
/// are in `sound` (canonical paths), as this run wrote or loaded them, and those whose files hold all that is
/// to be there beside the state (problem_beside_state), which are added to it. Those kept for good do not
/// count. What is not sound or cannot be read is left alone, and so are the `spared` (canonical paths),
/// which do not count either. What is to be removed is in `sound` no more. Errors: IoError.
[[nodiscard]] std::vector<std::string> superfluous(std::string const& directory,
                                                   Retention const& retention, std::int64_t saved,
                                                   std::vector<std::string> const& spared,
                                                   std::set<std::string>& sound);

}  // namespace offstage::checkpoint
