#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/run_config.hpp"
#include "plan/share.hpp"
#include "state/shard.hpp"
#include "update/update.hpp"

namespace offstage::train {

/// Which part of a rank's updates the device takes: as update.device-share says, or what the rates of the
/// updates so far make best. Pure: numbers in, trips out; a choice never changes a bit.
class DeviceShare {
 public:
  /// `demand`: of this rank. `rates`: platform.*, zeros where not given: then the first updates go half and
  /// half, from which everything is measured.
  DeviceShare(config::SharePolicy const& policy, plan::UpdateDemand const& demand,
              plan::UpdateRates const& rates);

  /// The share of the next update, in [0, 1], of what is not resident.
  [[nodiscard]] double share() const noexcept { return share_; }
  /// `order` of subgroups that are not resident, each with its place: those of the device are spread evenly,
  /// and as near to the share as whole subgroups allow.
  [[nodiscard]] std::vector<update::Trip> trips(
      std::span<std::int64_t const> order, std::vector<state::Subgroup> const& subgroups) const;
  /// Gradients of so many elements may wait on the device.
  void set_held(std::int64_t elements);
  /// Tells the rates that the storage paths give this rank now; see plan::UpdateRates. Until all are known, and while none is
  /// written to, the choice leaves storage out.
  void set_paths(std::vector<plan::PathRate> paths);
  /// Learns from what an update measured.
  void learn(update::UpdateStats const& stats);

  [[nodiscard]] plan::UpdateRates const& rates() const noexcept { return rates_; }
  /// Returns the time that the next update is expected to take if nothing else goes on beside it (plan::update_times); zeros
  /// while a rate is unknown.
  [[nodiscard]] plan::UpdateTimes expected() const;

 private:
  [[nodiscard]] bool knows_rates() const noexcept;
  [[nodiscard]] bool knows_paths() const noexcept;
  void choose();

  config::SharePolicy policy_;
  plan::UpdateDemand demand_;
  plan::UpdateRates rates_;
  double share_{};
};

}  // namespace offstage::train
