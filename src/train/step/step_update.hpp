#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/stopwatch.hpp"
#include "config/run_config.hpp"
#include "device/device.hpp"
#include "parameters/working_parameters.hpp"
#include "plan/share.hpp"
#include "platform/mpi/communicator.hpp"
#include "platform/trace/trace.hpp"
#include "state/shard.hpp"
#include "train/memory/update_shape.hpp"
#include "train/offload/offload.hpp"
#include "train/step/device_share.hpp"
#include "train/step/overlap_choice.hpp"
#include "train/step/share_step.hpp"
#include "update/device_lane.hpp"
#include "update/gradients/held_gradients.hpp"
#include "update/gradients/step_gradients.hpp"
#include "update/update.hpp"

namespace offstage::train {

/// Numbers that a step's update is made with, beside its gradients.
struct UpdateNumbers {
  double learning_rate{};
  std::int64_t optimizer_step{};  ///< t, counted from 1
  double gradient_scale{};        ///< the mean gradient is what was accumulated times this
};

/// The choices of a run's updates, and the update::Update that they drive: when a step's update begins, which
/// subgroups the device takes, and whether an update that began before the norm was known is kept.
/// T is numerics.dtype.
///
/// Collective: construction and plan.
/// Errors:     those of the update.
template <class T>
class StepUpdate {
 public:
  /// All of them outlive it.
  struct Parts {
    device::Device const& device;
    std::vector<state::Subgroup> const& subgroups;
    Offload& offload;
    update::StepGradients<T>& gradients;
    parameters::WorkingParameters<T>& copy;
    update::DeviceLane* lane{};     ///< null: the cores update, and write where parameters are read
    update::HeldGradients* held{};  ///< null: all gradients go to the host
  };

  /// From now on gradients go to the update as they become final, and the copy waits for parameters that
  /// the update still has to write.
  /// Errors: mpi::AgreedError: update.overlap=on, but that is not possible.
  StepUpdate(config::RunConfig const& config, mpi::Communicator const& comm,
             UpdateShape const& shape, Parts const& parts, trace::Trace* trace = nullptr);
  /// Ends the threads of the gradients, of the update and of what brings parameters, which know of each
  /// other.
  ~StepUpdate();
  StepUpdate(StepUpdate const&) = delete;
  StepUpdate& operator=(StepUpdate const&) = delete;

  /// Before a step's first gradients: waits for the update before, then chooses whether this one begins under
  /// backward and who computes what, so that gradients can be put there. `step`: runs since the step's begin.
  void plan(Stopwatch const& step);
  /// True if this step's update is to begin under backward.
  [[nodiscard]] bool is_planned_early() const noexcept { return planned_early_; }
  /// Before the last backward: begins the update that was planned so, by the step that it will be if nothing
  /// is clipped.
  void begin_early(UpdateNumbers const& numbers);
  /// Makes the update once the norm is known: updates all subgroups, or none if the step is `skipped`. An
  /// early update is confirmed, or reverted and made again. `clip`: factor of the mean gradient; 1: it is not
  /// clipped. The rest may go on until the next plan or finish.
  [[nodiscard]] ShareStep make(UpdateNumbers const& numbers, double clip, bool skipped);
  /// Waits for the update, before gradients or state are touched by others.
  void finish() { learn(update_.finish()); }
  /// After the step, with all its seconds, for the choices to come.
  void ended(OverlapChoice::Step step);
  /// Something else ran between or beside the steps: the last one is no measure.
  void disturbed() { overlap_.disturbed(); }

  /// Returns the share of what is not resident that the device takes in the next update.
  [[nodiscard]] double share() const noexcept { return share_.share(); }
  /// Returns rates that ended updates have measured, and the paths'; 0 where nothing is known.
  [[nodiscard]] plan::UpdateRates const& rates() const noexcept { return share_.rates(); }

 private:
  /// True if an update can begin under backward: with slots of the lane that are not activations' memory.
  [[nodiscard]] bool can_begin_early() const noexcept;
  [[nodiscard]] OverlapChoice make_overlap() const;
  [[nodiscard]] update::UpdateParts update_parts() const;
  /// Returns every subgroup's trip, in the order in which they are to begin.
  [[nodiscard]] std::vector<update::Trip> next_trips(bool early);
  /// Returns what is reported of the planned update.
  [[nodiscard]] ShareStep planned() const;
  void learn(update::UpdateStats const& stats);
  /// Fills the working copy with these subgroups' parameters, from the state as it is.
  void rebuild_parameters(std::span<tiers::Key const> subgroups);
  [[nodiscard]] kernels::OptimizerStep step_of(UpdateNumbers const& numbers, double clip) const;

  config::RunConfig const& config_;
  mpi::Communicator const& comm_;
  Parts parts_;
  OverlapChoice overlap_;
  DeviceShare share_;
  bool planned_early_ = false;
  Seconds planned_{};  ///< into this step: when plan() had waited
  update::Update update_;
};

}  // namespace offstage::train
