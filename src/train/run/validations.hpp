#pragma once

#include <cstdint>
#include <optional>

#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"
#include "train/report/journal.hpp"
#include "train/run/position.hpp"
#include "train/run/run_parts.hpp"
#include "train/saves/cadence.hpp"

namespace offstage::train {

/// Validations of a run: the one that an earlier start owes, the best one, and what checkpoints
/// know of them. T is numerics.dtype.
template <class T>
class Validations {
 public:
  /// All arguments outlive it.
  Validations(config::RunConfig const& config, mpi::Communicator const& comm, RunParts<T>& parts,
              Position& at, Cadence& cadence, Journal& journal)
      : config_{config},
        comm_{comm},
        parts_{parts},
        at_{at},
        cadence_{cadence},
        journal_{journal} {}

  /// Looks for a target that counts in validations, whose loss would be no number. Collective.
  /// Errors: mpi::AgreedError.
  void require_target();
  /// Finds the best validation of earlier starts, if it counts for this one. Call it between
  /// Journal::open and Journal::begin. Collective. Errors: mpi::AgreedError.
  void find_best();

  /// Makes the validation of the last step. Returns false if it was left out because the run stops.
  /// Collective. Errors: those of StepRunner::validate and Journal::validated.
  bool make();
  /// The same before a start's first step, which train.max-time never ends.
  bool make_whatever_the_time();
  /// Writes the validations to the step's checkpoint, if that was saved before the last of them.
  void tell_the_checkpoint();

  /// Returns whether the step from which this start goes on lacks its validation, which an earlier
  /// start left out when it stopped.
  [[nodiscard]] bool is_owed() const;
  /// Returns whether the last validation was the best so far, and of this step.
  [[nodiscard]] bool is_best() const;
  /// Returns whether train.patience is at its end.
  [[nodiscard]] bool has_lost_patience() const;
  /// Returns whether the run goes on from its own step, which is the best and is to be kept.
  [[nodiscard]] bool begin_with_best() const;
  /// Returns whether checkpoint.dir has the best step. A start that loaded level 1 does not know.
  /// Collective.
  [[nodiscard]] bool checkpoint_dir_has_best() const;
  /// Returns whether the best step has a complete checkpoint in checkpoint.dir, if that is asked
  /// for and can be found out.
  [[nodiscard]] std::optional<bool> keeps_best() const;
  /// Returns whether an earlier start began at the same step, too, and so has had its chance: the
  /// validation that it owed is not made up, and one before the first step does not end this start
  /// if it is stopped.
  [[nodiscard]] bool has_tried() const noexcept { return has_tried_; }
  /// Returns whether they are of other data than those of earlier starts.
  [[nodiscard]] bool begin_anew() const noexcept { return begin_anew_; }

 private:
  [[nodiscard]] bool leads() const { return comm_.rank() == 0; }
  [[nodiscard]] bool is_saved() const { return parts_.saves().is_saved(at_.step()); }

  config::RunConfig const& config_;
  mpi::Communicator const& comm_;
  RunParts<T>& parts_;
  Position& at_;
  Cadence& cadence_;
  Journal& journal_;
  bool continues_own_ = false;  ///< a checkpoint in checkpoint.dir or of level 1
  bool begin_anew_ = false;
  std::int64_t last_ = -1;  ///< step of the last one of earlier starts
  bool has_tried_ = false;
};

}  // namespace offstage::train
