#pragma once

#include <string>

#include "config/run_config.hpp"

namespace offstage::config {

constexpr char const* effective_config_name = "effective.cfg";

/// All keys of a run as a file that --config takes and that gives the same run. Comments are: defaults
/// that derive from other keys, so that they do for other values too, those that the optimizer does not
/// use, a subgroup's default size, which may shrink, and those that are empty. Pure.
[[nodiscard]] std::string effective_config(RunConfig const& config);

}  // namespace offstage::config
