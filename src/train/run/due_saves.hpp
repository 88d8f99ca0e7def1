#pragma once

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/report/journal.hpp"
#include "train/run/position.hpp"
#include "train/run/run_parts.hpp"
#include "train/saves/pace.hpp"

namespace offstage::train {

/// Saves of both levels after a step, as they are due: which are made now, and which waits for the one before. T is
/// numerics.dtype.
template <class T>
class DueSaves {
 public:
  /// All outlive it.
  DueSaves(config::RunConfig const& config, mpi::Communicator const& comm, RunParts<T>& parts,
           Position& at, Journal& journal)
      : config_{config}, comm_{comm}, parts_{parts}, at_{at}, journal_{journal} {}

  /// Saves what is due after the last step, under the next step if one follows. `is_best`: its validation was the best
  /// so far. Collective. Errors: those of Saves.
  void save(Decision const& due, bool a_step_follows, bool is_best);

 private:
  /// Finishes what has to be done before a save while another goes on; false if this one waits for a later step.
  [[nodiscard]] bool finish_earlier_save(bool a_step_follows, bool is_best);
  /// Brings all to be as a save takes it. Returns how long the update was waited for.
  Seconds settle_state();

  config::RunConfig const& config_;
  mpi::Communicator const& comm_;
  RunParts<T>& parts_;
  Position& at_;
  Journal& journal_;
  bool postponed_ = false;  ///< a save is due and waits for the end of the one before
};

}  // namespace offstage::train
