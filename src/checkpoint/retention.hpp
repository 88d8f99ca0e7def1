#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace offstage::checkpoint {

/// Renames `directory`/`name` to a free name that starts with "passed-over-", durably: nothing is
/// lost, and no restart takes it again. Does nothing if it is not there. Errors: IoError.
void set_aside(std::string const& directory, std::string const& name);

/// Removes complete checkpoints beyond the `keep` newest, of which the one of step `saved` is the
/// first, and what is broken and older than that. What cannot be read is left alone, and so are the
/// `spared` (canonical paths), which do not count either. Errors: IoError.
void prune(std::string const& directory, int keep, std::int64_t saved,
           std::vector<std::string> const& spared);

}  // namespace offstage::checkpoint
