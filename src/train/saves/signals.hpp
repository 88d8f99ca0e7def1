#pragma once

#include <array>
#include <csignal>
#include <optional>

#include "base/units.hpp"

namespace offstage::train {

/// While it lives, SIGUSR1, SIGUSR2, SIGTERM, SIGINT (Ctrl-C), SIGHUP (a lost terminal, unless it
/// was ignored before, as by nohup) and SIGXCPU (limits of SGE and LSF) ask the run to save and
/// end. All signals together are one request: Slurm's own SIGTERM may follow the SIGUSR1 for which
/// a job asked, while the run saves. Only SIGUSR1, SIGUSR2 or SIGINT again, more than two seconds
/// later, ends the process at once (exit code 1); launchers repeat signals sooner. SIGTERM again
/// does not: Slurm sends it at the beginning and at the end of a time of grace, and leaves time for
/// the save after both. After ignore() signals have no effect until the process ends, because the
/// save is done. There is one object per process.
/// SIGCONT, too, is noted: a scheduler that stops a job for another one ends the stop by it.
/// Errors: PreconditionError if there is one already.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(StopSignals const&) = delete;
  StopSignals& operator=(StopSignals const&) = delete;

  /// The first signal's number; 0 if none came.
  [[nodiscard]] int received() const noexcept;
  void ignore() noexcept;
  /// Time since the last SIGCONT; empty if none came.
  [[nodiscard]] std::optional<Seconds> since_continued() const noexcept;

 private:
  std::array<struct sigaction, 6> before_{};
  struct sigaction before_continue_ {};
};

}  // namespace offstage::train
