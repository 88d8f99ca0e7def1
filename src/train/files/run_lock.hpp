#pragma once

#include <string>

namespace offstage::train {

/// Holds `directory/lock` (F_OFD_SETLK) while it lives, so that two runs never share a directory.
/// The kernel lets go if the process dies; the file stays and its contents only inform: host,
/// process, start time.
/// Errors: LockedError naming the directory and who holds it; IoError, also where something else
///         than a file is called so (base/regular_file.hpp). A file system without locks (ENOLCK)
///         only warns.
class RunLock {
 public:
  static constexpr char const* file_name = "lock";

  /// `key` names the directory's key in messages, as in "run.dir".
  RunLock(std::string const& directory, std::string const& key);
  ~RunLock();
  RunLock(RunLock const&) = delete;
  RunLock& operator=(RunLock const&) = delete;

  /// True if there was no lock file before.
  [[nodiscard]] bool created() const noexcept { return created_; }
  /// Unlinks the file if this lock created it. Nobody else can hold it then; who has opened it
  /// already finds out and starts over.
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
