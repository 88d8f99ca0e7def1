#pragma once

#include <optional>
#include <string>

#include "base/units.hpp"
#include "platform/slurm/job.hpp"

namespace offstage::slurm {

/// Answer of squeue about the end of a job.
struct Answer {
  std::optional<TimePoint> end;  ///< empty: without limit, or unknown
  std::string problem;        ///< why it is unknown, with what squeue wrote; empty if it is known
  bool has_no_limit = false;  ///< squeue said so
};

/// Runs `squeue -h -j ID -o "%A %e"`, waits for it, `patience` at most (then it is killed), and
/// takes the line of the job itself: the last task of an array has the array's id, so all are
/// listed. For one rank: the controller of a large cluster has better things to do. Never throws
/// for what squeue does.
/// Order:   blocks. The child is made by posix_spawn, which copies no memory that MPI has
///          registered.
/// `program` stands in for squeue in tests.
[[nodiscard]] Answer ask_end_time(std::string const& job_id, Seconds patience,
                                  std::string const& program = "squeue");

}  // namespace offstage::slurm
