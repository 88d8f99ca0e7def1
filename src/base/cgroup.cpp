#include "base/cgroup.hpp"

#include <algorithm>
#include <fstream>

namespace offstage {

std::vector<Cgroup> cgroups_of(std::string const& controller, std::string const& root) {
  std::vector<Cgroup> groups;
  std::ifstream membership{root + "/proc/self/cgroup"};
  std::string line;
  while (std::getline(membership, line)) {
    auto const first = line.find(':');
    auto const second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    auto const controllers = line.substr(first + 1, second - first - 1);
    bool const v2 = controllers.empty();
    if (!v2 && (',' + controllers + ',').find(',' + controller + ',') == std::string::npos) {
      continue;
    }
    std::string const top = root + "/sys/fs/cgroup" + (v2 ? "" : "/" + controller);
    std::string path = line.substr(second + 1);
    while (true) {
      groups.push_back({top + path + "/", v2});
      if (path.empty() || path == "/") {
        break;
      }
      auto const slash = path.rfind('/');
      path.erase(slash == std::string::npos ? 0 : slash);
    }
  }
  return groups;
}

std::optional<std::int64_t> number_in(std::string const& path) {
  std::ifstream file{path};
  std::int64_t value{};
  return file >> value ? std::optional{value} : std::nullopt;
}

std::optional<double> cpu_quota(std::string const& root) {
  std::optional<double> least;
  for (Cgroup const& group : cgroups_of("cpu", root)) {
    double quota = 0.0, period = 0.0;  // microseconds; no number stands for no quota
    if (group.v2) {
      std::ifstream{group.folder + "cpu.max"} >> quota >> period;
    } else {
      std::ifstream{group.folder + "cpu.cfs_quota_us"} >> quota;
      std::ifstream{group.folder + "cpu.cfs_period_us"} >> period;
    }
    if (quota > 0.0 && period > 0.0) {
      least = std::min(least.value_or(quota / period), quota / period);
    }
  }
  return least;
}

}  // namespace offstage
