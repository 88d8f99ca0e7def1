#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace offstage {

/// One control group that this process is in.
struct Cgroup {
  std::string folder;  ///< directory of the group's files; ends with /
  bool v2{};
};

/// The groups of a controller ("memory"), from the process's own up to the root of the hierarchy,
/// which may have a limit too: that of a container. `root` stands in for / in tests.
[[nodiscard]] std::vector<Cgroup> cgroups_of(std::string const& controller,
                                             std::string const& root = "");

/// The number that a file begins with; none if there is no such file, or it says "max".
[[nodiscard]] std::optional<std::int64_t> number_in(std::string const& path);

/// The number of cores of which this process's groups may use the time, by their CPU quotas: 1.5.
/// None if no group has a quota.
[[nodiscard]] std::optional<double> cpu_quota(std::string const& root = "");

}  // namespace offstage
