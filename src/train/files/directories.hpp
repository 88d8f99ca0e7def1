#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/run_config.hpp"
#include "train/files/run_lock.hpp"

namespace offstage::train {

/// The run and checkpoint directories of one run, durably created where missing, and their locks.
/// Rank 0 alone makes one. Unless keep() was called, the destructor removes again what it created:
/// a run that does not get to its first step leaves nothing. The directory of the tiers' slots goes
/// in any case. Either may be a symbolic link; what a run itself makes inside may not.
/// Errors: IoError naming the key and the path, also where a directory is another user's
///         (foreign.hpp) and run.allow-foreign is false, and where a checkpoint or the slots are
///         symbolic links; UsageError if checkpoint.dir is a checkpoint itself; LockedError.
class Directories {
 public:
  explicit Directories(config::RunConfig const& config);
  ~Directories();
  Directories(Directories const&) = delete;
  Directories& operator=(Directories const&) = delete;

  void keep() noexcept { kept_ = true; }

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
