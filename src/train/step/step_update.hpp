#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/stopwatch.hpp"
#include "config/run_config.hpp"
#include "parameters/working_parameters.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/shard.hpp"
#include "train/offload/offload.hpp"
#include "train/step/overlap_choice.hpp"
#include "train/step/shared_update.hpp"
#include "update/gradients/step_gradients.hpp"

namespace offstage::train {

/// What a step's update is made with, beside its gradients.
struct UpdateNumbers {
  double learning_rate{};
  std::int64_t optimizer_step{};  ///< t, counted from 1
  double gradient_scale{};        ///< the mean gradient is what was accumulated times this
};

/// When a step's update begins, and what becomes of one that began before the norm of the gradients was known.
/// T is numerics.dtype.
///
/// Errors: those of the update.
template <class T>
class StepUpdate {
 public:
  /// All of them outlive it.
  struct Parts {
    SharedUpdate& update;
    update::StepGradients<T>& gradients;
    parameters::WorkingParameters<T>& copy;
    Offload& offload;
    std::vector<state::Subgroup> const& subgroups;
  };

  /// Collective. Errors: mpi::AgreedError: update.overlap=on, but that is not possible.
  StepUpdate(config::RunConfig const& config, mpi::Communicator const& comm, Parts const& parts);

  /// Before a step's first gradients: the update before ends, and it is chosen whether this one begins under
  /// backward. `step`: runs since the step's begin. Collective.
  void plan(Stopwatch const& step);
  /// Whether it was so chosen.
  [[nodiscard]] bool is_ahead() const noexcept { return ahead_; }
  /// Before the last backward: the update, which is_ahead(), begins, by the step that it will be if nothing is clipped.
  void begin_ahead(UpdateNumbers const& numbers);
  /// Once the norm is known: all subgroups are updated, or none if the step is `skipped`; what began is
  /// confirmed, done again or undone. `clip`: what the mean gradient is multiplied with; 1: not clipped.
  [[nodiscard]] ShareStep complete(UpdateNumbers const& numbers, double clip, bool skipped);
  /// After the step, with all its seconds, for the choices to come.
  void ended(OverlapChoice::Step step);
  /// Something else ran between or beside the steps: the last one is no measure.
  void disturbed() { overlap_.disturbed(); }

 private:
  [[nodiscard]] OverlapChoice make_overlap() const;
  /// These subgroups' parameters, from the state as it is.
  void rebuild_parameters(std::span<tiers::Key const> subgroups);
  [[nodiscard]] kernels::OptimizerStep step_of(UpdateNumbers const& numbers, double clip) const;
  [[nodiscard]] update::GradientSource gradient_source() const;
  [[nodiscard]] parameters::Targets parameter_targets() const;

  config::RunConfig const& config_;
  mpi::Communicator const& comm_;
  Parts parts_;
  OverlapChoice overlap_;
  bool ahead_ = false;  ///< of this step: its update begins under backward
  Seconds planned_{};   ///< into this step: when plan() had waited
};

}  // namespace offstage::train
