#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "train/saves/stop.hpp"

namespace offstage::train {

/// The time between two saves that loses least to saves and to work done again, if a save costs
/// `cost` and interruptions come `mtbf` apart on average.
/// Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart
///         dumps, Future Generation Computer Systems 22 (2006), equation 37; its first term is J.
///         W. Young's.
[[nodiscard]] Seconds daly_interval(Seconds cost, Seconds mtbf);

/// The mean time until a node is lost within a day after its partner was, or the one that it is the
/// partner of, if single nodes are lost at random, each `mtbf` apart on average; a day is what it
/// may take until all have copies again. Never less than until one of all nodes is lost.
/// Source: of mirrored disks. D. A. Patterson, G. Gibson, R. H. Katz, A case for redundant arrays
///         of inexpensive disks, SIGMOD 1988: MTTF^2 / (disks (group - 1) MTTR).
[[nodiscard]] Seconds partners_mtbf(Seconds mtbf, int nodes);

/// checkpoint.every=auto: daly_interval, but a minute at least, and ten times the cost, so that
/// saves never take more than a tenth of the time, however small the mtbf is.
[[nodiscard]] Seconds auto_interval(Seconds cost, Seconds mtbf);

/// Time that a save took.
struct SaveTime {
  Seconds
      whole{};  ///< without the pauses of checkpoint.rate, which a save that ends a run leaves out
  Seconds stood_still{};  ///< what of it no step went on under
};

/// The action that follows a step.
struct Decision {
  Stop stop = Stop::none;
  bool validate = false;
  bool save = false;
  bool save_local = false;  ///< level 1 too
};

/// Level 1 has a cadence of its own, with checkpoint.mtbf; level 2 is saved for the loss of a
/// node's storage then, by checkpoint.node-mtbf for each node, and with level 3 for that of two
/// nodes that have each other's copy.
///
/// When a run validates, saves and stops, from how long things took. It keeps the longest step,
/// save and validation, for the time that is left must do; and the medians of the last saves, for
/// checkpoint.every=auto: their cost is the time that the run stood still. Times are of one clock
/// that begins with the run. Pure; it reads no clock.
class Pace {
 public:
  /// `job_end`: when the batch system ends the job; empty: never or unknown.
  Pace(config::RunConfig const& config, std::optional<Seconds> job_end)
      : config_{config},
        job_end_{job_end},
        has_local_{!config.checkpoint.local.empty()},
        has_copies_{config.checkpoint.partner} {}

  void step_took(Seconds seconds);
  void validation_took(Seconds seconds);
  /// It goes on under steps, until save_took; the next one is due so long after this.
  void save_began(Seconds now);
  void save_took(SaveTime const& time, Seconds now);  ///< it has just ended
  void local_save_took(SaveTime const& time, Seconds now);
  /// There will be no more saves of level 1.
  void local_level_ended() { has_local_ = has_copies_ = false; }
  /// There will be no more copies on partners.
  void copies_ended() { has_copies_ = false; }
  /// Until a save was measured: the time that filling the state took. `loaded` from a checkpoint it
  /// also stands for a save's cost under checkpoint.every=auto; first weights may come from slower
  /// work.
  void expect_save(Seconds seconds, bool loaded);

  /// Returns what to do after `step`. `asked` is signal or file if someone wants the run to stop.
  /// Time is up if what is due now, another step and its save might not end before train.max-time,
  /// or train.time-margin before the job does. A run that stops saves and leaves out the
  /// validation.
  [[nodiscard]] Decision after(std::int64_t step, Seconds now, Stop asked) const;

  /// "a step takes 1.2 s, a save 3.4 s": what the decision to stop rests on.
  [[nodiscard]] std::string figures() const;
  /// The time between saves under checkpoint.every=auto.
  [[nodiscard]] Seconds automatic() const;
  /// The same under checkpoint.local-every=auto.
  [[nodiscard]] Seconds local_automatic() const;

 private:
  [[nodiscard]] bool validation_follows(std::int64_t step) const;
  [[nodiscard]] bool save_is_due(std::int64_t step, Seconds now) const;
  [[nodiscard]] bool local_save_is_due(std::int64_t step, Seconds now) const;
  [[nodiscard]] Seconds mtbf() const;
  [[nodiscard]] Stop time_is_up(std::int64_t step, Seconds now, Decision const& due) const;

  config::RunConfig const& config_;
  std::optional<Seconds> job_end_;
  Seconds longest_step_{}, longest_validation_{}, longest_save_{};
  Seconds last_save_{};          ///< when it ended; when it began, if it went on under steps
  bool saving_ = false;          ///< under steps
  std::vector<SaveTime> saves_;  ///< the last ones
  bool has_local_;               ///< level 1
  bool has_copies_;              ///< level 3
  Seconds longest_local_save_{};
  Seconds last_local_save_{};
  std::vector<SaveTime> local_saves_;
  std::optional<Seconds> expected_save_;
};

}  // namespace offstage::train
