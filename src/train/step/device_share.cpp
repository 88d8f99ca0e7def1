#include "train/step/device_share.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace offstage::train {
namespace {

constexpr double first_share = 0.5;
/// The weight of the newest figure. It is so small that one disturbed update does not overturn the
/// choice.
constexpr double newest_figure = 0.5;

void follow(double& rate, double amount, Seconds seconds) {
  if (amount > 0.0 && seconds > Seconds{}) {
    double const now = amount / seconds.count();
    rate = rate > 0.0 ? (1.0 - newest_figure) * rate + newest_figure * now : now;
  }
}

}  // namespace

DeviceShare::DeviceShare(config::SharePolicy const& policy, plan::UpdateDemand const& demand,
                         plan::UpdateRates const& rates)
    : policy_{policy}, demand_{demand}, rates_{rates} {
  choose();
}

bool DeviceShare::knows_rates() const noexcept {
  return rates_.cpu_update > 0.0 && rates_.device_update > 0.0 && rates_.host_to_device > 0.0 &&
         rates_.device_to_host > 0.0;
}

bool DeviceShare::knows_paths() const noexcept {
  return demand_.storage.none() ||
         (!rates_.paths.empty() && std::ranges::all_of(rates_.paths, &plan::PathRate::known));
}

void DeviceShare::choose() {
  if (policy_.device_share) {
    share_ = *policy_.device_share;
    return;
  }
  plan::UpdateDemand known = demand_;
  if (!knows_paths()) {
    known.storage = {};
  }
  share_ = knows_rates() ? plan::best_share(known, rates_) : first_share;
}

std::vector<update::Trip> DeviceShare::trips(std::span<std::int64_t const> order,
                                             std::vector<state::Subgroup> const& subgroups) const {
  std::vector<std::int64_t> sizes;
  std::ranges::transform(subgroups, std::back_inserter(sizes), &state::Subgroup::size);
  return plan::deal_trips(share_, order, sizes);
}

void DeviceShare::set_held(std::int64_t elements) {
  demand_.held = elements;
  choose();
}

void DeviceShare::set_paths(std::vector<plan::PathRate> paths) {
  rates_.paths = std::move(paths);
  choose();
}

// Both directions are measured while both are in use, as in an update.
void DeviceShare::learn(update::UpdateStats const& stats) {
  follow(rates_.cpu_update, static_cast<double>(stats.cpu_elements), stats.compute);
  follow(rates_.device_update, static_cast<double>(stats.device.updated), stats.device.kernel);
  follow(rates_.host_to_device, static_cast<double>(stats.device.to_device_bytes),
         stats.device.host_to_device);
  follow(rates_.device_to_host, static_cast<double>(stats.device.to_host_bytes),
         stats.device.device_to_host);
  rates_.host_to_device_both = rates_.host_to_device;
  rates_.device_to_host_both = rates_.device_to_host;
  choose();
}

plan::UpdateTimes DeviceShare::expected() const {
  return knows_rates() && knows_paths() ? plan::update_times(demand_, rates_, share_)
                                        : plan::UpdateTimes{};
}

}  // namespace offstage::train
