#pragma once

#include <string>

namespace offstage::cli {

/// The checkpoint.dir that the run in the directory `path` was given, if it is there and no
/// checkpoint lies in `path` itself; else `path`, which may be no run at all. The checkpoint.dir in
/// the copy of a run's directory is the run's, not the copy's, as far as an absolute run.dir tells.
/// A relative checkpoint.dir, of an older version's run, counts as none. Keys of other versions are
/// passed over. RUN/best gets such a beginning, too.
/// Errors: IoError; DataError if its effective.cfg is no file, or has more than 64 MiB.
[[nodiscard]] std::string given_checkpoints(std::string const& path);

}  // namespace offstage::cli
