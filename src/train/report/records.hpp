#pragma once

#include <string>

#include "config/run_config.hpp"
#include "train/report/header.hpp"

namespace offstage::train {

/// Errors: IoError if something else than a file stands where write_records would write.
void require_records(config::RunConfig const& config);

/// Writes run.dir/effective.cfg and header.txt. Errors: as write_run_file.
void write_records(config::RunConfig const& config, Header const& header);

/// Writes `text` to run.dir/NAME unless it stands there already; a kill leaves the old text or the
/// new.
/// Errors: IoError naming run.dir and the path.
void write_run_file(config::RunConfig const& config, std::string const& name,
                    std::string const& text);

}  // namespace offstage::train
