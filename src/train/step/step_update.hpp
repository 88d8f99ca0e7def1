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

/// Numbers with which a step's update is made, beside its gradients.
struct UpdateNumbers {
  double learning_rate{};
  std::int64_t optimizer_step{};  ///< t, counted from 1
  double gradient_scale{};        ///< factor from the accumulated gradient to the mean gradient
};

/// The choices of a run's updates, and the update::Update that they drive: when a step's update
/// begins, which subgroups the device takes, and whether an early update is confirmed. T is
/// numerics.dtype.
///
/// Collective: construction and plan.
/// Errors:     those of the update.
template <class T>
class StepUpdate {
 public:
  /// All of them must outlive the StepUpdate.
  struct Parts {
    device::Device const& device;
    std::vector<state::Subgroup> const& subgroups;
    Offload& offload;
    update::StepGradients<T>& gradients;
    parameters::WorkingParameters<T>& copy;
    update::DeviceLane* lane{};     ///< null: the cores update, and write where parameters are read
    update::HeldGradients* held{};  ///< null: all gradients go to the host
  };

  /// Connects the parts: from now on gradients go to the update as they become final, and the copy
  /// waits for parameters that the update still has to write.
  /// Errors: mpi::AgreedError: update.overlap=on, but that is not possible.
  StepUpdate(config::RunConfig const& config, mpi::Communicator const& comm,
             UpdateShape const& shape, Parts const& parts, trace::Trace* trace = nullptr);
  /// Ends the threads of the gradients, of the update and of the working copy, which wait for each
  /// other.
  ~StepUpdate();
  StepUpdate(StepUpdate const&) = delete;
  StepUpdate& operator=(StepUpdate const&) = delete;

  /// Plans the update, before a step's first gradients. Waits for the update before, then chooses
  /// whether this one begins under backward, and which side computes each subgroup, so that
  /// gradients can go there. `step` runs since the step's begin.
  void plan(Stopwatch const& step);
  /// Returns true if this step's update is to begin under backward.
  [[nodiscard]] bool is_planned_early() const noexcept { return planned_early_; }
  /// Begins an early update, before the last backward, by the step for a gradient that is not
  /// clipped. is_planned_early() is true.
  void begin_early(UpdateNumbers const& numbers);
  /// Makes the update once the norm is known: updates all subgroups, or none if the step is
  /// `skipped`. An early update is confirmed, or reverted and made again. `clip` is the factor of
  /// the mean gradient; 1: it is not clipped. Part of the update may go on until the next plan or
  /// finish.
  [[nodiscard]] ShareStep make(UpdateNumbers const& numbers, double clip, bool skipped);
  /// Waits for the update, before gradients or state are touched by others.
  void finish() { learn(update_.finish()); }
  /// Takes the step with all its seconds, after its end, for the next choices.
  void ended(OverlapChoice::Step step);
  /// Says that something else ran between or beside the steps, so that the last one is no measure.
  void disturbed() { overlap_.disturbed(); }

  /// Returns the device's share of the next update, of the elements that are not resident.
  [[nodiscard]] double share() const noexcept { return share_.share(); }
  /// Returns the rates that ended updates have measured, and the paths'; 0 if unknown.
  [[nodiscard]] plan::UpdateRates const& rates() const noexcept { return share_.rates(); }

 private:
  /// Returns true if an update can begin under backward. For that the lane's memory must not be the
  /// activations'.
  [[nodiscard]] bool can_begin_early() const noexcept;
  [[nodiscard]] OverlapChoice make_overlap() const;
  [[nodiscard]] update::UpdateParts update_parts() const;
  /// Returns every subgroup's trip, in the order in which they are to begin.
  [[nodiscard]] std::vector<update::Trip> next_trips(bool early);
  /// Returns the report's values that the plan decides.
  [[nodiscard]] ShareStep planned() const;
  void learn(update::UpdateStats const& stats);
  /// Fills the working copy with these subgroups' parameters, from the present state.
  void rebuild_parameters(std::span<tiers::Key const> subgroups);
  [[nodiscard]] kernels::OptimizerStep step_of(UpdateNumbers const& numbers, double clip) const;

  config::RunConfig const& config_;
  mpi::Communicator const& comm_;
  Parts parts_;
  OverlapChoice overlap_;
  DeviceShare share_;
  bool planned_early_ = false;
  Seconds planned_{};  ///< time from the step's begin to the end of plan()'s wait
  update::Update update_;
};

}  // namespace offstage::train
