#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "base/thread.hpp"

namespace offstage::checkpoint {

/// Removes old checkpoints one after another, on a thread of its own, because storage may take long
/// to remove large files. The log names those that cannot be removed, and they stay. The thread
/// calls neither HDF5 nor MPI.
///
/// Threads: the owner's alone calls the members.
class Removal {
 public:
  Removal() = default;
  ~Removal() { wait(); }
  Removal(Removal const&) = delete;
  Removal& operator=(Removal const&) = delete;

  /// Waits for the removal before, and begins with these step directories. If no thread can start,
  /// it removes them before it returns.
  void begin(std::vector<std::string> const& step_directories);
  /// Returns true while wait() would wait.
  [[nodiscard]] bool is_under_way() const noexcept { return !done_; }
  /// Returns when nothing is being removed.
  void wait() noexcept;

 private:
  std::atomic<bool> done_{true};
  std::optional<NamedThread> thread_;
};

}  // namespace offstage::checkpoint
