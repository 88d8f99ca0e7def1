#pragma once

#include <string>

#include "train/header.hpp"
#include "train/run_config.hpp"

namespace offstage::train {

constexpr char const* effective_config_name = "effective.cfg";
constexpr char const* header_name = "header.txt";

/// All keys of a run as a file that --config takes and that gives the same run. Comments are: defaults
/// that derive from other keys, so that they do for other values too, those that the optimizer does not
/// use, a subgroup's default size, which may shrink, and those that are empty. Pure.
[[nodiscard]] std::string effective_config(RunConfig const& config);

/// Errors: IoError if something else than a file stands where write_records would write.
void require_records(RunConfig const& config);

/// Writes run.dir/effective.cfg and header.txt. Errors: as write_run_file.
void write_records(RunConfig const& config, Header const& header);

/// Writes `text` to run.dir/NAME unless it stands there already; a kill leaves the old text or the new.
/// Errors: IoError naming run.dir and the path.
void write_run_file(RunConfig const& config, std::string const& name, std::string const& text);

}  // namespace offstage::train
