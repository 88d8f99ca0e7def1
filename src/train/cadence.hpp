#pragma once

#include <cstdint>

#include "base/stopwatch.hpp"
#include "base/units.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/run_config.hpp"
#include "train/signals.hpp"

namespace offstage::train {

/// Why a run ends before its last step.
enum class Stop : std::int64_t { none, signal, file, time };

/// "a signal came"; empty for none.
char const* reason_of(Stop stop);

/// Removes run.dir/STOP, so that the next start does not stop again; true if it was there.
bool take_stop_file(RunConfig const& config);

/// When a run validates, saves and stops. It learns from the longest step, validation and save how
/// much time the next ones need.
class Cadence {
 public:
  Cadence(RunConfig const& config, mpi::Communicator const& comm, StopSignals const& signals)
      : config_{config}, comm_{comm}, signals_{signals} {}

  /// Time since construction.
  [[nodiscard]] Seconds now() const { return since_start_.elapsed(); }

  void step_took(Seconds seconds);
  void validation_took(Seconds seconds);
  void save_took(Seconds seconds);  ///< it has just ended
  /// Until a save was measured.
  void expect_save(Seconds seconds) { longest_save_ = seconds; }

  [[nodiscard]] bool validation_follows(std::int64_t step) const;
  /// Whether to stop after `step`, the same on all ranks. Collective.
  [[nodiscard]] Stop stop_wanted(std::int64_t step) const;
  /// Whether to save after `step`, the same on all ranks. Collective.
  [[nodiscard]] bool save_is_due(std::int64_t step, Stop stop) const;

 private:
  RunConfig const& config_;
  mpi::Communicator const& comm_;
  StopSignals const& signals_;
  Stopwatch since_start_;
  Seconds longest_step_{}, longest_validation_{}, longest_save_{};
  Seconds last_save_{};  ///< when it ended
};

}  // namespace offstage::train
