#pragma once

#include <csignal>

namespace offstage::train {

/// While it lives, SIGUSR1, SIGTERM and SIGINT (Ctrl-C) ask the run to save and end. All that come
/// are one request: Slurm's own SIGTERM may follow the SIGUSR1 that a job asked for, while the run
/// saves. Only the same signal again, more than two seconds later, ends the process at once (exit
/// code 1); launchers repeat themselves sooner. After ignore() signals do nothing, to the end of
/// the process: the save is done. One object per process.
/// Errors: PreconditionError if one lives already.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(StopSignals const&) = delete;
  StopSignals& operator=(StopSignals const&) = delete;

  /// The first signal's number, 0 if none came.
  [[nodiscard]] int received() const noexcept;
  void ignore() noexcept;

 private:
  struct sigaction before_usr1_ {};
  struct sigaction before_term_ {};
  struct sigaction before_int_ {};
};

}  // namespace offstage::train
