#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace offstage::slurm {

using TimePoint = std::chrono::system_clock::time_point;

/// The value of a variable, null if it is not set: std::getenv, or a table in tests.
using Environment = std::function<char const*(char const*)>;

/// Facts that Slurm tells the processes of a job.
struct Job {
  std::string id;    ///< digits; of an array, the task's own
  std::string name;  ///< without control characters; may be empty
  std::int64_t restart_count{};
  std::string array_job{};                   ///< digits; empty: no array
  std::optional<std::int64_t> array_task{};  ///< task of array_job
  std::string nodes{};                       ///< as Slurm writes them: "n[1-3,7]"
  std::optional<TimePoint> end{};            ///< when Slurm ends it; empty: unknown or never
};

/// The job that this process belongs to; empty outside of Slurm (SLURM_JOB_ID is no number). A
/// variable that makes no sense counts as missing. SLURM_JOB_END_TIME is there from Slurm 23.02 on;
/// before, ask_end_time knows.
[[nodiscard]] std::optional<Job> job_of(Environment const& environment);

/// This node as Slurm names it (SLURMD_NODENAME), else `host`.
[[nodiscard]] std::string node_name(Environment const& environment, std::string const& host);

/// Returns true if srun started this process and its PMIx plugin brings the ranks together
/// (PMIX_NAMESPACE is "slurm.pmix.JOB.STEP").
[[nodiscard]] bool has_slurm_pmix(Environment const& environment);

/// The GPUs of this node that Slurm gave to this process's job (SLURM_GPUS_ON_NODE). At least 1
/// where SLURM_JOB_GPUS or SLURM_STEP_GPUS names some.
[[nodiscard]] int given_gpus(Environment const& environment);

/// Reads seconds since 1970 ("1763745600") or a time in UTC ("2025-11-21T17:20:00"); empty for
/// "Unknown", "NONE", "UNLIMITED" and all else.
[[nodiscard]] std::optional<TimePoint> parse_time(std::string_view text);

/// "4711 (train), restart 2, task 3 of array 4709".
[[nodiscard]] std::string describe(Job const& job);

}  // namespace offstage::slurm
