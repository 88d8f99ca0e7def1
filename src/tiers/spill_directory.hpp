#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace offstage::tiers {

/// Whose a spill directory is.
struct SpillOwner {
  std::string job;  ///< the batch system's id; empty: none
  std::string run;  ///< name by which the user knows the run
  std::string host;
  std::int64_t process{};
  int rank{};
};

/// `offstage-JOB-RUN-HOST-PROCESS-RANK`, JOB `nojob` where there is none: so that an epilog finds
/// what belongs to a job (`offstage-4711-*`). JOB, RUN and HOST have at most 64 letters, digits,
/// '.' and '_' alone; all else becomes '_'.
[[nodiscard]] std::string spill_name(SpillOwner const& owner);
/// The owner of a name of exactly that form; empty for all other names, which any user may have
/// made.
[[nodiscard]] std::optional<SpillOwner> spill_owner(std::string_view name);

/// Spill directories that were found, for the log. One line each; of more than `most_spill_lines`
/// of a kind the last line says how many more there are: everyone may make such names in a shared
/// directory.
struct SpillReport {
  std::vector<std::string> removed;
  /// First this user's own, then those of others; each kind cut for itself.
  std::vector<std::string> left;
};
constexpr std::size_t most_spill_lines = 4;

/// Looks for what killed runs left in `directory` (a run that lives leaves nothing, for its files
/// have no names). Removes a spill directory if it is this user's and its process, on `host` (this
/// one), is gone; only the files that Offstage makes, and then the empty directory. One of another
/// host, of another user, or with something else in it stays and is reported. Ignores names of
/// another form and the directories of living processes. A directory that cannot be read reports
/// nothing: its user learns why when files are made. Several processes may do this at a time.
[[nodiscard]] SpillReport tidy_spills(std::string const& directory, std::string const& host);

/// Removes what a killed process of this process's very id left under the name of its spill
/// directory, before this process makes it: in containers ids come back. Touches no other name, and
/// nothing of another user. Returns true if the directory stays, and may be used. NFS and FUSE keep
/// in it the files that this process has open, under hidden names.
bool remove_namesake(std::string const& directory, std::string const& name);

/// True on tmpfs and ramfs, whose files take host memory.
[[nodiscard]] bool lies_in_memory(std::string const& directory);

}  // namespace offstage::tiers
