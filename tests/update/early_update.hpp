#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "overlap_scene.hpp"
#include "platform/faulty_kernel.hpp"
#include "targets_in.hpp"
#include "tiers/device_tiers.hpp"
#include "tiers/virtual_support.hpp"
#include "update/device_lane.hpp"
#include "update/gradients/flusher.hpp"
#include "update/gradients/held_gradients.hpp"
#include "update/update.hpp"

namespace offstage::update {

/// A rank's updates over the real tiers, with what stands for its backward: gradients come subgroup
/// by subgroup, the last first, through pools of their own. The thread of the test is the one that
/// computes backward.
class EarlyUpdate : private tiers::VirtualFixture {
 public:
  explicit EarlyUpdate(Scene const& scene);
  /// As StepRunner's: nothing goes on when what it uses ends.
  ~EarlyUpdate() { update_->abandon(); }
  EarlyUpdate(EarlyUpdate const&) = delete;
  EarlyUpdate& operator=(EarlyUpdate const&) = delete;

  [[nodiscard]] Shard const& shard() const { return shard_; }
  [[nodiscard]] Update& update() { return *update_; }
  [[nodiscard]] state::Readiness& readiness() { return update_->readiness(); }
  [[nodiscard]] tiers::Tiers& state() { return *state_; }
  [[nodiscard]] aio::FaultyKernel& faults() { return *kernel; }

  /// A step begins: its update is planned, and its rounds of gradients before the last come to
  /// nothing.
  void first_rounds();
  /// And its update.
  void begin_early(kernels::OptimizerStep const& presumed, double most_squares = no_clipping);
  /// The last round brings this gradient, of the whole shard, for one subgroup: complete soon, and
  /// after drain() at the latest. Subgroups come in descending order.
  void bring(std::int64_t index, Values const& gradient);
  void drain() { flusher_->drain(); }
  /// Brings all.
  void backward(Values const& gradient);
  /// The sums of a subgroup that the last round has come to.
  [[nodiscard]] tiers::Lease open(std::int64_t index);
  /// Makes the planned update, that has all gradients; again if it was taken back.
  void run(kernels::OptimizerStep const& step);
  /// As StepRunner does where a step is skipped.
  void rebuild(std::span<tiers::Key const> subgroups);

  [[nodiscard]] Values copy_of(std::int64_t index);
  /// Whether the working copy has these parameters, of the whole shard, for the subgroup.
  [[nodiscard]] bool shows(std::int64_t index, Values const& parameters);
  void wait_for(std::int64_t index);
  /// Descending, a part of them on the device; residents last.
  [[nodiscard]] std::vector<Trip> order() const;

 private:
  void make_tiers();
  void make_update();
  void hold(state::Subgroup const& subgroup, std::span<bfloat16 const> gradient);
  [[nodiscard]] state::Subgroup const& at(std::int64_t index) const {
    return shard_.subgroups[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] bool is_held(std::int64_t index) const {
    return held_ && held_->holds(at(index).begin);
  }
  [[nodiscard]] GradientLease gradient_of(state::Subgroup const& subgroup);
  [[nodiscard]] GradientSource source() {
    return [this](state::Subgroup const& subgroup) { return gradient_of(subgroup); };
  }
  [[nodiscard]] parameters::Targets targets() {
    return parameters::targets_in(copy_.as<bfloat16>());
  }
  void put(std::int64_t begin, Values const& values);

  Scene scene_;
  Shard shard_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;  ///< the model's
  device::Buffer copy_;
  device::Buffer incoming_;  ///< the model's gradient
  std::unique_ptr<tiers::DeviceTiers> state_;
  std::unique_ptr<tiers::Tiers> sums_;
  std::unique_ptr<tiers::Tiers> flushed_;  ///< null: the update reads the sums
  std::unique_ptr<DeviceLane> lane_;
  std::unique_ptr<HeldGradients> held_;
  std::unique_ptr<Update> update_;
  std::optional<GradientFlusher> flusher_;  ///< ends before what it tells
};

}  // namespace offstage::update
