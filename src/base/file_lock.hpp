#pragma once

#include <string>

namespace offstage {

enum class FileLock {
  held,       ///< until the descriptor is closed or the process dies
  elsewhere,  ///< another descriptor has it
  missing,    ///< the file system has no locks; errno says why
};

/// Permissions of a file that is made at `path` to be locked. Whoever may read it may lock it, and
/// so keep its owner out: the file's group may where it may write the directory.
[[nodiscard]] unsigned mode_of_lock(std::string const& path);

/// Locks a file that is open for writing, whole (F_OFD_SETLK), without waiting.
/// Errors: IoError: `action`, as in "run.dir=a: cannot lock", and `path`.
[[nodiscard]] FileLock lock_file(int descriptor, std::string const& action,
                                 std::string const& path);

/// Cause for which locks on an open file hold on this node alone: "the mount option nolock", say
/// (of NFS; "localflock" of Lustre, "localflocks" of GFS2, "nobrl" of CIFS), or a BeeGFS, whose own
/// are so unless it is told otherwise. Empty if there is none, or if /proc/self/mountinfo cannot be
/// read. `root` stands in for / in tests.
[[nodiscard]] std::string cause_of_local_locks(int descriptor, std::string const& root = "");

/// False if the file was removed, or replaced by another of that name, since it was opened.
[[nodiscard]] bool is_file_at(std::string const& path, int descriptor);

}  // namespace offstage
