#pragma once

#include <string>

#include "config/run_config.hpp"

namespace offstage::config {

constexpr char const* effective_config_name = "effective.cfg";

/// All keys of a run as a file for --config that gives the same run. Some keys are comments:
/// defaults that derive from other keys, so that they still do so if those change, keys that the
/// optimizer does not use, a subgroup's default size, which may shrink, and empty values. Pure.
[[nodiscard]] std::string effective_config(RunConfig const& config);

}  // namespace offstage::config
