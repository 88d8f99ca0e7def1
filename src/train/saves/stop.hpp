#pragma once

#include <cstdint>

namespace offstage::train {

/// The reason why a run ends before its last step. With `patience`, train.patience, the run is
/// done.
enum class Stop : std::int64_t { none, signal, file, max_time, job_end, patience };

/// The reason in words: "a signal came"; empty for none.
char const* reason_of(Stop stop);

/// The reason in a word, for programs: "done" for none, "signal", "stop-file", "max-time",
/// "job-end", "patience".
char const* name_of(Stop stop);

/// Returns whether the run has to end soon: the sender of a signal waits, or the time is over.
[[nodiscard]] bool is_urgent(Stop stop);

}  // namespace offstage::train
