#pragma once

#include <string>

#include "config/run_config.hpp"
#include "train/report/header.hpp"

namespace offstage::train {

/// The directory from which the run's relative paths count; empty if that cannot be found out.
[[nodiscard]] std::string working_directory();

/// Checks that write_records can write.
/// Errors: IoError if the name of a record is that of no regular file.
void require_records(config::RunConfig const& config);

/// Writes run.dir/effective.cfg and header.txt, and with run.trace removes the traces of ranks that
/// this start does not have. Errors: as write_run_file.
void write_records(config::RunConfig const& config, Header const& header, int ranks);

/// Writes `text` to run.dir/NAME unless the file has it already. A kill leaves the old text or the
/// new.
/// Errors: IoError naming run.dir and the path.
void write_run_file(config::RunConfig const& config, std::string const& name,
                    std::string const& text);

}  // namespace offstage::train
