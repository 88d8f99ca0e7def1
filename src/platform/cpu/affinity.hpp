#pragma once

#include <string>
#include <vector>

namespace offstage::cpu {

/// The logical CPUs that this process may run on, ascending (its affinity mask).
[[nodiscard]] std::vector<int> allowed_cpus();

/// "0-3,8": a list as taskset and Slurm write it.
[[nodiscard]] std::string format_cpus(std::vector<int> const& cpus);

[[nodiscard]] std::string host_name();

}  // namespace offstage::cpu
