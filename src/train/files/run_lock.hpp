#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>

#include "base/error.hpp"

namespace offstage::train {

/// Holds `directory/lock` (F_OFD_SETLK) while it lives, so that two runs never share a directory.
/// The kernel frees the lock if the process dies. The file stays; its contents (host, process,
/// start time) only inform, but for one thing: a holder of this host that was killed is waited for,
/// a minute at most, as its lock lasts until storage has answered it.
/// Errors: LockedError naming the directory and the process that holds it; IoError, also if the
///         name is that of no regular file (base/regular_file.hpp). A file system without locks
///         (ENOLCK) causes a warning only.
class RunLock {
 public:
  static constexpr char const* file_name = "lock";

  /// `key` names the directory's key in messages, as in "run.dir".
  RunLock(std::string const& directory, std::string const& key);
  ~RunLock();
  RunLock(RunLock const&) = delete;
  RunLock& operator=(RunLock const&) = delete;

  /// Looks whether the lock still keeps others out. A file that somebody removed is made and locked
  /// again, with a warning. A lock that a file server gave up is taken again. What cannot be looked
  /// at is taken to be as it was.
  /// Errors: UsageError if the directory was moved or removed, and is not back within seconds: the
  ///         same command would begin anew there; LockedError if another run has it now.
  void look_again();
  /// The line in the file, which tells this holder from all others; empty if it could not be
  /// written, as on a full file system.
  [[nodiscard]] std::string const& line() const noexcept { return line_; }
  /// Waits until `line` stands in the lock file of a directory, as another node sees it: storage
  /// that all nodes share shows it at once, or after some seconds.
  /// Errors: IoError if it does not.
  static void require_line(std::string const& line, std::string const& directory,
                           std::string const& key,
                           std::chrono::milliseconds patience = std::chrono::seconds{20});
  /// Unlinks the file if this lock created it. Nobody else can hold it then. A process that has
  /// opened it already notices, and starts over.
  void remove() noexcept;

 private:
  void take();
  [[nodiscard]] bool open();
  [[nodiscard]] bool lock();
  void close() noexcept;
  /// Locks the file again. Errors: LockedError if another run has it now.
  void ask_again() const;
  [[nodiscard]] LockedError in_use() const;
  /// Whether the file of that name is the one that is locked. One call of the system.
  [[nodiscard]] bool is_there() const;
  /// Whether the name of the directory leads elsewhere now, or nowhere.
  [[nodiscard]] bool has_moved() const;

  std::string directory_;
  std::string key_;
  std::string path_;
  std::string line_;
  std::pair<dev_t, ino_t> file_;  ///< device and inode of the file
  int directory_descriptor_{-1};  ///< while it is open, no other directory gets its inode
  int descriptor_{-1};
  bool created_ = false;
  bool is_missed_ = false;  ///< the file was removed, and is not made again yet
};

}  // namespace offstage::train
