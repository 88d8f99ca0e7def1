#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "train/saves/stop.hpp"

namespace offstage::train {

/// The time between two saves with which least time is lost to saves and to repeated work, if a
/// save costs `cost` and interruptions come `mtbf` apart on average.
/// Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart
///         dumps, Future Generation Computer Systems 22 (2006), equation 37; its first term is J.
///         W. Young's.
[[nodiscard]] Seconds daly_interval(Seconds cost, Seconds mtbf);

/// The mean time until a node is lost within a day after one of its two neighbours: its partner, or
/// the node whose partner it is. Single nodes are lost at random, each `mtbf` apart on average.
/// After a day all nodes have copies again. The result is never less than the time until one of all
/// nodes is lost.
/// Source: for mirrored disks, D. A. Patterson, G. Gibson, R. H. Katz, A case for redundant arrays
///         of inexpensive disks, SIGMOD 1988: MTTF^2 / (disks (group - 1) MTTR).
[[nodiscard]] Seconds partners_mtbf(Seconds mtbf, int nodes);

/// The interval of checkpoint.every=auto: daly_interval, but at least a minute and ten times the
/// cost, so that saves never take more than a tenth of the time, however small the mtbf is.
[[nodiscard]] Seconds auto_interval(Seconds cost, Seconds mtbf);

/// Time that a save took.
struct SaveTime {
  /// Time without the pauses of checkpoint.rate, which a save at a run's end does not make.
  Seconds whole{};
  Seconds stood_still{};     ///< part in which no step went on
  bool was_stopped = false;  ///< as of steps; see Pace
};

/// The action that follows a step.
struct Decision {
  Stop stop = Stop::none;
  bool validate = false;
  bool save = false;
  bool save_local = false;  ///< save level 1, too
};

/// Decides when a run validates, saves and stops, from the durations of steps, saves and
/// validations. It keeps the longest of each, for the time that is left must be enough. For
/// checkpoint.every=auto it keeps the medians of the last saves; their cost is the time for which
/// the run stood still. Times are those of one clock that begins with the run. Pure; it reads no
/// clock. A duration in which the process was stopped, as by a scheduler that suspends the job,
/// counts only if it is the first of its kind: later ones will not be as long.
///
/// Level 1 has an interval of its own, by checkpoint.mtbf. Level 2 is then saved for the loss of a
/// node's storage, by checkpoint.node-mtbf for each node, and with level 3 for the loss of two
/// nodes that have each other's copy.
class Pace {
 public:
  /// `job_end` is when the batch system ends the job; empty: never or unknown.
  Pace(config::RunConfig const& config, std::optional<Seconds> job_end)
      : config_{config},
        job_end_{job_end},
        has_local_{!config.checkpoint.local.empty()},
        has_copies_{config.checkpoint.partner} {}

  /// Replaces the time at which the batch system ends the job; empty: never.
  void job_ends(std::optional<Seconds> end) { job_end_ = end; }
  void step_took(Seconds seconds, bool was_stopped = false);
  void validation_took(Seconds seconds, bool was_stopped = false);
  /// Says that a save has begun and goes on under steps, until save_took. The interval to the next
  /// one begins now.
  void save_began(Seconds now);
  void save_took(SaveTime const& time, Seconds now);  ///< the save has just ended
  void local_save_took(SaveTime const& time, Seconds now);
  /// Says that there will be no more saves of level 1.
  void local_level_ended() { has_local_ = has_copies_ = false; }
  /// Says that there will be no more copies on partners.
  void copies_ended() { has_copies_ = false; }
  /// Sets the expected time of a save until one was measured: the time that filling the state took.
  /// If the state was `loaded` from a checkpoint, it is also a save's cost for
  /// checkpoint.every=auto. First weights may come from slower work.
  void expect_save(Seconds seconds, bool loaded);

  /// Says whether a validation is under way before this start's first step. Its step is saved, and
  /// train.max-time, which may be shorter, does not end it.
  void only_validates(bool only) { only_validates_ = only; }

  /// Returns the action that follows `step`. `asked` is signal or file if somebody wants the run to
  /// stop. Time is up if the actions due now, another step and its save might not end before
  /// train.max-time, or train.time-margin before the job's end. A run that stops saves and leaves
  /// out the validation. After the last step a run stops only if its validation is left out.
  [[nodiscard]] Decision after(std::int64_t step, Seconds now, Stop asked) const;

  /// The stop that follows `step` while the validation behind it is under way. After the last step
  /// the run needs no more time than for a save, if that waits for the validation.
  [[nodiscard]] Stop stop_under_validation(std::int64_t step, Seconds now, Stop asked) const;

  /// The figures behind a decision to stop, in words: "a step takes 1.2 s, a save 3.4 s".
  [[nodiscard]] std::string figures() const;
  /// The time between saves under checkpoint.every=auto.
  [[nodiscard]] Seconds automatic() const;
  /// The same under checkpoint.local-every=auto.
  [[nodiscard]] Seconds local_automatic() const;

  /// Returns whether the step is one behind which a validation is made.
  [[nodiscard]] bool validation_follows(std::int64_t step) const;

 private:
  [[nodiscard]] bool save_is_due(std::int64_t step, Seconds now) const;
  [[nodiscard]] bool local_save_is_due(std::int64_t step, Seconds now) const;
  [[nodiscard]] Seconds mtbf() const;
  [[nodiscard]] Stop time_is_up(std::int64_t step, Seconds now, Decision const& due) const;
  /// The limit that comes before `done`.
  [[nodiscard]] Stop limit_before(Seconds done) const;

  config::RunConfig const& config_;
  std::optional<Seconds> job_end_;
  Seconds longest_step_{}, longest_validation_{}, longest_save_{};
  Seconds last_save_{};  ///< end of the last save; its begin if it went on under steps
  bool only_validates_ = false;
  bool saving_ = false;          ///< a save goes on under steps
  std::vector<SaveTime> saves_;  ///< the last saves
  bool has_local_;               ///< there is a level 1
  bool has_copies_;              ///< there is a level 3
  Seconds longest_local_save_{};
  Seconds last_local_save_{};
  std::vector<SaveTime> local_saves_;
  std::optional<Seconds> expected_save_;
};

}  // namespace offstage::train
