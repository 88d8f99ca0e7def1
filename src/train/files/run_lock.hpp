#pragma once

#include <string>

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

  /// Unlinks the file if this lock created it. Nobody else can hold it then. A process that has
  /// opened it already notices, and starts over.
  void remove() noexcept;

 private:
  [[nodiscard]] bool open(std::string const& directory, std::string const& key);
  [[nodiscard]] bool lock(std::string const& directory, std::string const& key);
  void close() noexcept;

  std::string path_;
  int descriptor_{-1};
  bool created_ = false;
};

}  // namespace offstage::train
