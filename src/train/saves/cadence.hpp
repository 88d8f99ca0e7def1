#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/stopwatch.hpp"
#include "base/units.hpp"
#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/slurm/job.hpp"
#include "train/saves/pace.hpp"
#include "train/saves/signals.hpp"

namespace offstage::train {

/// Removes run.dir/STOP, so that the next start does not stop again. Returns true if it was there.
bool take_stop_file(config::RunConfig const& config);
/// Errors: IoError if it is still there.
void require_no_stop_file(config::RunConfig const& config);

/// The pace of a run on many ranks: rank 0's clock and STOP file, and a signal on any rank, decide
/// for all.
class Cadence {
 public:
  /// The job's end is that of rank 0's RunConfig::job.
  Cadence(config::RunConfig const& config, mpi::Communicator const& comm,
          StopSignals const& signals);

  /// Time since construction.
  [[nodiscard]] Seconds now() const { return since_start_.elapsed(); }

  /// The step has just ended.
  void step_took(Seconds seconds) { pace_.step_took(seconds, was_stopped_in(seconds)); }
  void validation_took(Seconds seconds) { pace_.validation_took(seconds, was_stopped_in(seconds)); }
  void save_began() { pace_.save_began(now()); }
  /// The save has just ended.
  void save_took(SaveTime time) {
    time.was_stopped = was_stopped_in(time.whole);
    pace_.save_took(time, now());
  }
  void local_save_took(SaveTime time) {
    time.was_stopped = was_stopped_in(time.whole);
    pace_.local_save_took(time, now());
  }
  void local_level_ended() { pace_.local_level_ended(); }
  void copies_ended() { pace_.copies_ended(); }
  /// See Pace.
  [[nodiscard]] bool validation_follows(std::int64_t step) const {
    return pace_.validation_follows(step);
  }
  void only_validates(bool only) { pace_.only_validates(only); }
  /// The time has just ended.
  void expect_save(Seconds seconds, bool loaded) {
    pace_.expect_save(seconds, loaded && !was_stopped_in(seconds));
  }

  /// Returns the action that follows `step`, the same on all ranks. Logs the reason if time is up.
  /// Before a stop for the job's end rank 0 asks squeue whether the job ends later by now.
  /// Collective.
  [[nodiscard]] Decision after(std::int64_t step);
  /// Returns whether the run stops while the validation behind `step` is under way. Leaves the STOP
  /// file. Collective.
  [[nodiscard]] bool will_stop(std::int64_t step);
  /// Returns the action that follows `step` if will_stop() ended its validation. Collective.
  [[nodiscard]] Decision after_half_a_validation(std::int64_t step);

 private:
  /// Returns whether this process was stopped and went on within the last `seconds`.
  [[nodiscard]] bool was_stopped_in(Seconds seconds) const {
    auto const since = signals_.since_continued();
    return since && *since <= seconds;
  }
  /// Returns Stop::file, on rank 0 alone, or Stop::signal if somebody wants that. Collective.
  [[nodiscard]] Stop asked() const;
  /// Asks squeue. Returns true if the job ends later than was known, or never.
  bool has_more_time();
  /// Obeys and says what rank 0 has decided.
  void conclude(std::int64_t step, Stop stop) const;
  void say(std::int64_t step, Stop stop) const;

  config::RunConfig const& config_;
  mpi::Communicator const& comm_;
  StopSignals const& signals_;
  Stopwatch since_start_;
  std::optional<slurm::TimePoint> job_end_;
  Pace pace_;
};

}  // namespace offstage::train
