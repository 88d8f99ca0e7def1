#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "config/run_config.hpp"
#include "device/device.hpp"
#include "device/memory_counter.hpp"
#include "plan/memory.hpp"
#include "platform/trace/trace.hpp"
#include "state/readiness.hpp"
#include "state/shard.hpp"
#include "train/memory/update_shape.hpp"
#include "train/offload/offload.hpp"
#include "train/step/device_share.hpp"
#include "train/step/share_step.hpp"
#include "update/device_lane.hpp"
#include "update/gradients/held_gradients.hpp"
#include "update/pipeline.hpp"

namespace offstage::train {

/// A rank's updates, shared between its cores and its device: who takes what, the device's lane, the
/// pipeline, and what goes on of one update under the next forward.
class SharedUpdate {
 public:
  /// `idle`: device memory that no one uses while an update computes; slots are taken from it if the device
  /// has no room for its own. Errors: UsageError of the device.
  SharedUpdate(config::RunConfig const& config, UpdateShape const& shape, device::Device& device,
               std::span<std::byte> idle, std::vector<state::Subgroup> const& subgroups,
               Offload& offload, trace::Trace* trace, device::MemoryCounter* memory = nullptr);

  /// Whether an update can begin under backward: with slots of the lane that are not activations' memory.
  [[nodiscard]] bool can_begin_ahead() const noexcept;
  /// Gradients that the device will need stay there from the next plan() on; the others are summed there too where there
  /// is room, if `sums_on_device`. Outlives the calls.
  void set_held(update::HeldGradients& held, bool sums_on_device);
  /// Who updates what next, so that gradients can be put where that is: before they come. Once for each
  /// update. `ahead`: it will begin under backward.
  void plan(bool ahead);

  /// Says which parts of the working copy are this step's.
  [[nodiscard]] state::Readiness& readiness() noexcept { return readiness_; }

  /// Updates what needs the cores; the rest may go on until finish().
  ShareStep run(kernels::OptimizerStep const& step, update::GradientSource gradient,
                parameters::Targets const& targets);
  /// The update that was planned ahead begins, before the last round of backward; see
  /// UpdatePipeline::start_ahead for this and the following.
  void begin_ahead(kernels::OptimizerStep const& presumed, double most_squares,
                   update::GradientSource gradient, parameters::Targets targets);
  [[nodiscard]] bool is_ahead() const noexcept { return pipeline_->is_ahead(); }
  /// A gradient is final. Nothing unless is_ahead. Threads: any.
  void complete(std::int64_t subgroup, double squares);
  /// The presumed step is right; the rest may go on until finish().
  ShareStep confirm();
  /// It is not: all is as before, but these subgroups' parameters, which the update may have changed. A plan
  /// for redo() is there.
  [[nodiscard]] std::vector<tiers::Key> take_back();
  /// Does again by another step what was taken back; it may go on until finish().
  ShareStep redo(kernels::OptimizerStep const& step, update::GradientSource gradient,
                 parameters::Targets targets);
  /// The run has failed: waits for trips; nothing goes on any more.
  void abandon() noexcept;
  /// Before gradients or state are touched again. Errors: those of the update.
  void finish();

  /// Share of what is not resident that the device takes in the next update.
  [[nodiscard]] double share() const noexcept { return share_.share(); }
  /// Rates that ended updates have measured, and the paths'; 0 where nothing is known.
  [[nodiscard]] plan::UpdateRates const& rates() const noexcept { return share_.rates(); }
  /// Seconds inside the last run.
  [[nodiscard]] Seconds seconds() const noexcept { return seconds_; }

 private:
  [[nodiscard]] std::vector<update::Trip> next_trips(bool ahead);
  [[nodiscard]] ShareStep planned() const;
  /// Ends an update that has been given to the pipeline, where transfers block.
  void end_if_blocking();

  std::vector<state::Subgroup> const& subgroups_;
  Offload& offload_;
  state::Readiness readiness_;
  std::unique_ptr<update::DeviceLane> lane_;  ///< null: the cores update and write where it is read
  DeviceShare share_;
  update::HeldGradients* held_{};    ///< null: all gradients go to the host
  bool sums_on_device_ = false;      ///< of all subgroups
  std::vector<update::Trip> trips_;  ///< of the next update
  std::unique_ptr<update::UpdatePipeline> pipeline_;
  plan::Transfers transfers_;
  bool spills_ = false;  ///< run returns before all is done
  Seconds seconds_{};
};

}  // namespace offstage::train
