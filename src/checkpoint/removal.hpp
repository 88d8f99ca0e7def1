#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "base/thread.hpp"

namespace offstage::checkpoint {

/// Removes old checkpoints one after another, on a thread of its own: storage takes its time for large files. What
/// cannot be removed stays, which the log says. The thread calls neither HDF5 nor MPI.
///
/// Threads: the owner's alone.
class Removal {
 public:
  Removal() = default;
  ~Removal() { wait(); }
  Removal(Removal const&) = delete;
  Removal& operator=(Removal const&) = delete;

  /// Waits for what is being removed, and begins with these step directories. Where no thread starts it removes them
  /// before it returns.
  void begin(std::vector<std::string> const& step_directories);
  /// True while wait() would wait.
  [[nodiscard]] bool goes_on() const noexcept { return !done_; }
  /// Returns when nothing is being removed.
  void wait() noexcept;

 private:
  std::atomic<bool> done_{true};
  std::optional<NamedThread> thread_;
};

}  // namespace offstage::checkpoint
