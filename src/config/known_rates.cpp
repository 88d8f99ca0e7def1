#include "config/known_rates.hpp"

#include "base/rate.hpp"

namespace offstage::config {

plan::UpdateRates known_rates(RunConfig const& config) {
  plan::UpdateRates rates = config.platform;
  device::Emulation const& emulated = config.device.emulation;
  rates.cpu_update = first_known(rates.cpu_update, emulated.host_update);
  rates.device_update = first_known(rates.device_update, emulated.device_update);
  rates.host_to_device = first_known(rates.host_to_device, emulated.host_to_device);
  rates.device_to_host = first_known(rates.device_to_host, emulated.device_to_host);
  return rates;
}

double known_compute(RunConfig const& config) {
  return first_known(config.platform_products, config.device.emulation.compute);
}

double known_host_sum(RunConfig const& config) {
  return first_known(config.platform_passes.host_sum, config.device.emulation.host_sum);
}

}  // namespace offstage::config
