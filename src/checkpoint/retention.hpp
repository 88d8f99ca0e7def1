#pragma once

#include <cstdint>
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
/// lost, and no restart takes it again. Does nothing if it is not there. Errors: IoError.
void set_aside(std::string const& directory, std::string const& name);

/// Removes complete checkpoints beyond the newest that `retention` keeps, of which the one of step
/// `saved` is the first, and what is broken and older than that. Those kept for good do not count. What cannot be read is left alone, and so are the
/// `spared` (canonical paths), which do not count either. Errors: IoError.
void prune(std::string const& directory, Retention const& retention, std::int64_t saved,
           std::vector<std::string> const& spared);

}  // namespace offstage::checkpoint
