#pragma once

#include <cstdint>

namespace offstage::train {

/// Why a run ends before its last step.
/// `patience` is train.patience: the run is done then.
enum class Stop : std::int64_t { none, signal, file, max_time, job_end, patience };

/// "a signal came"; empty for none.
char const* reason_of(Stop stop);

}  // namespace offstage::train
