#pragma once

#include <string>

#include "base/units.hpp"

namespace offstage::memory {

/// Resident memory of this process now, and its highest value so far (VmRSS, VmHWM).
[[nodiscard]] Bytes resident_bytes();
[[nodiscard]] Bytes peak_resident_bytes();

/// Resident memory that is this process's alone: no libraries, no memory shared with other ranks.
[[nodiscard]] Bytes private_bytes();

/// Bytes that this process may still map under its RLIMIT_AS (ulimit -v); the largest number
/// without one.
[[nodiscard]] Bytes address_space_left();

/// Bytes that a node can still give: MemAvailable, or what is free or cache in the NUMA nodes of
/// the process's cpuset, or the rest of the cgroup's limit (v1 or v2), or what Slurm granted the
/// job there, whichever is least. `root` stands in for / in tests, here and below. Errors: IoError
/// if /proc/meminfo does not tell.
[[nodiscard]] Bytes available_bytes(std::string const& root = "");

/// Most bytes that a node can give: its memory, or that of the NUMA nodes of the process's cpuset,
/// or the tightest limit of the cgroups (v1 or v2) that this process is in, or what Slurm granted
/// the job there (SLURM_MEM_PER_NODE, or SLURM_MEM_PER_CPU and SLURM_CPUS_ON_NODE, in MiB), which
/// no cgroup need enforce. Errors: IoError if /proc/meminfo does not tell.
struct MemoryLimit {
  Bytes bytes{};
  bool of_job = false;  ///< a cpuset's, a cgroup's or Slurm's
};
[[nodiscard]] MemoryLimit memory_limit(std::string const& root = "");

}  // namespace offstage::memory
