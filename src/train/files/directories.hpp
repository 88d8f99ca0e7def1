#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "train/files/run_lock.hpp"

namespace offstage::train {

/// The run and checkpoint directories of one run, durably created if missing, and their locks. Rank
/// 0 alone makes this object. Unless keep() was called, the destructor removes what was created: a
/// run that does not reach its first step leaves nothing. The directory of the tiers' slots is
/// removed in any case. Both directories may be symbolic links; directories that a run makes inside
/// may not.
/// Errors: IoError naming the key and the path, also if a directory is another user's (foreign.hpp)
///         and run.allow-foreign is false, and if a checkpoint or the slots are symbolic links;
///         UsageError if checkpoint.dir is a checkpoint itself; LockedError.
class Directories {
 public:
  explicit Directories(config::RunConfig const& config);
  ~Directories();
  Directories(Directories const&) = delete;
  Directories& operator=(Directories const&) = delete;

  void keep() noexcept { kept_ = true; }
  /// RunLock::line of the lock in checkpoint.dir.
  [[nodiscard]] std::string const& line() const noexcept {
    return (checkpoint_lock_ ? checkpoint_lock_ : run_lock_)->line();
  }
  /// RunLock::look_again of run.dir.
  void look_at_run();
  /// The same of checkpoint.dir.
  void look_at_checkpoints();

 private:
  void make(std::string const& path, char const* key);
  void create_missing(std::string const& path, char const* key);
  void undo() noexcept;

  bool allow_foreign_;
  std::string slots_;
  std::vector<std::string> created_;  ///< in order of creation; a parent before its child
  std::unique_ptr<RunLock> run_lock_;
  std::unique_ptr<RunLock> checkpoint_lock_;
  bool kept_ = false;
};

}  // namespace offstage::train
