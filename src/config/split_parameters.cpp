#include "config/split_parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.hpp"

namespace offstage::config {
namespace {

/// The reason against splitting, and what would be right; empty if there is none.
std::string obstacle(RunConfig const& config) {
  if (config.numerics.dtype != DType::bf16) {
    return fmt::format(
        "numerics.dtype={} leaves no upper half of a parameter in the working copy; use "
        "numerics.dtype=bf16",
        name_of(config.numerics.dtype));
  }
  if (config.parameter_home == parameters::Home::storage) {
    return "parameters.home=storage keeps the working copy, which each update would have to read, "
           "on storage; use parameters.home=host";
  }
  device::Emulation const& link = config.device.emulation;
  bool const beyond_link = config.device.kind == DeviceKind::cuda || link.host_to_device > 0.0 ||
                           link.device_to_host > 0.0;
  if (config.parameter_home == parameters::Home::device && beyond_link) {
    return "parameters.home=device keeps the working copy, which each update would have to bring "
           "back over the link, on the device; use parameters.home=host";
  }
  return "";
}

}  // namespace

bool may_refer_to_extents(RunConfig const& config) {
  return std::ranges::any_of(config.paths, &tiers::PathSettings::persistent) ||
         config.checkpoint.is_paced() || !config.checkpoint.local.empty();
}

bool splits_parameters(RunConfig const& config) {
  std::string const why = obstacle(config);
  switch (config.storage.split_parameters) {
    case Switch::on:
      if (!why.empty()) {
        throw UsageError{
            fmt::format("tiers.split-parameters=on: {}, or tiers.split-parameters=auto", why)};
      }
      return true;
    case Switch::automatic:
      return why.empty() && !config.paths.empty() && config.overlap == Switch::off &&
             !may_refer_to_extents(config);
    case Switch::off:
      break;
  }
  return false;
}

void settle_split_parameters(RunConfig& config) {
  config.optimizer.split_parameter = splits_parameters(config);
  if (config.optimizer.split_parameter) {
    for (tiers::PathSettings& path : config.paths) {
      path.persistent = false;
      path.nearby = false;
    }
  }
}

}  // namespace offstage::config
