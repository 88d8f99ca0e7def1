#pragma once

#include "config/run_config.hpp"

namespace offstage::config {

// Rates of the machine: those of platform.*, and where none is given those of device.emulate, so
// that a plan may take other rates than the device is made to have. 0: not known.

/// Rates without paths.
[[nodiscard]] plan::UpdateRates known_rates(RunConfig const& config);
/// Floating-point operations per second of the device's products.
[[nodiscard]] double known_compute(RunConfig const& config);
/// Bytes per second of sums in host memory, as platform.host-sum.
[[nodiscard]] double known_host_sum(RunConfig const& config);

}  // namespace offstage::config
