#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/run_config.hpp"
#include "plan/share.hpp"
#include "state/shard.hpp"
#include "update/update.hpp"

namespace offstage::train {

/// Decides the device's share of a rank's updates: the value of update.device-share, or the best
/// one by the rates of the updates so far. Pure: numbers in, trips out. A choice never changes a
/// bit.
class DeviceShare {
 public:
  /// `demand` is this rank's. `rates` are platform.*, zero if not given. If they are not given, the
  /// first updates are divided into halves, and measure all rates.
  DeviceShare(config::SharePolicy const& policy, plan::UpdateDemand const& demand,
              plan::UpdateRates const& rates);

  /// The device's share of the next update, in [0, 1], of the elements that are not resident.
  [[nodiscard]] double share() const noexcept { return share_; }
  /// The trips of subgroups that are not resident, in this order. The device's trips are spread
  /// evenly, and come as near to the share as whole subgroups allow.
  [[nodiscard]] std::vector<update::Trip> trips(
      std::span<std::int64_t const> order, std::vector<state::Subgroup> const& subgroups) const;
  /// Sets the number of elements whose gradients may be held on the device.
  void set_held(std::int64_t elements);
  /// Sets the rates that the storage paths give this rank now; see plan::UpdateRates. Until all are
  /// known, and while no path is written to, the choice leaves storage out.
  void set_paths(std::vector<plan::PathRate> paths);
  /// Learns from the figures of an update.
  void learn(update::UpdateStats const& stats);

  [[nodiscard]] plan::UpdateRates const& rates() const noexcept { return rates_; }
  /// Returns the time that the next update is expected to take if nothing else goes on beside it
  /// (plan::update_times); zeros while a rate is unknown.
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
