#pragma once

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/report/journal.hpp"
#include "train/run/position.hpp"
#include "train/run/run_parts.hpp"
#include "train/saves/pace.hpp"

namespace offstage::train {

/// Saves of both levels after a step. Decides which of them are made now, and which one waits for
/// the one before. T is numerics.dtype.
template <class T>
class DueSaves {
 public:
  /// All arguments outlive it.
  DueSaves(config::RunConfig const& config, mpi::Communicator const& comm, RunParts<T>& parts,
           Position& at, Journal& journal)
      : config_{config}, comm_{comm}, parts_{parts}, at_{at}, journal_{journal} {}

  /// Makes the saves that are due after the last step, under the next step if one follows.
  /// `is_best` says that its validation was the best so far. After a bad step none is made
  /// unless it was the last, or its checkpoint stays: the save waits for a good step. Collective.
  /// Errors: those of Saves, Journal::sync and RunLock::look_again.
  void save(Decision const& due, bool a_step_follows, bool is_best);

 private:
  /// Returns whether a checkpoint of this step is kept beyond checkpoint.keep.
  [[nodiscard]] bool stays(bool is_best) const;
  /// Ends an earlier save that goes on, or returns false if this save waits for a later step.
  [[nodiscard]] bool finish_earlier_save(bool a_step_follows, bool is_best);
  /// Waits until the state is as a save needs it. Returns the time of the wait.
  Seconds settle_state();

  config::RunConfig const& config_;
  mpi::Communicator const& comm_;
  RunParts<T>& parts_;
  Position& at_;
  Journal& journal_;
  bool postponed_ =
      false;  ///< a save is due and waits: for the end of the one before, or for a good step
};

}  // namespace offstage::train
