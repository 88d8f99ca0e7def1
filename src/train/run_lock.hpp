#pragma once

#include <string>

namespace offstage::train {

/// Holds `directory/lock` (F_OFD_SETLK) while it lives, so that two runs never share a directory.
/// The kernel lets go if the process dies; the file stays and its contents only inform: host,
/// process, start time.
/// Errors: LockedError naming the directory and who holds it; IoError. A file system without locks
///         (ENOLCK) only warns.
class RunLock {
 public:
  /// `key` names the directory's key in messages, as in "run.dir".
  RunLock(std::string const& directory, std::string const& key);
  ~RunLock();
  RunLock(RunLock const&) = delete;
  RunLock& operator=(RunLock const&) = delete;

 private:
  int descriptor_{-1};
};

}  // namespace offstage::train
