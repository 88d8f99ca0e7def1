#include "platform/memory/process_memory.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/cgroup.hpp"
#include "base/error.hpp"

namespace offstage::memory {
namespace {

/// Linux is built for at most 1024 NUMA nodes.
constexpr int most_nodes = 1023;

/// The value of a line "Name:   123 kB" of a /proc file; 0 if it is not there.
Bytes field_of(std::string const& path, std::string const& name) {
  std::ifstream file{path};
  std::string word;
  while (file >> word) {
    if (word == name + ":") {
      Bytes kilobytes{};
      file >> kilobytes;
      return kilobytes * KiB;
    }
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

/// Errors: IoError. What is unknown must not look like a node without memory.
Bytes node_memory(std::string const& root, std::string const& name) {
  std::string const path = root + "/proc/meminfo";
  Bytes const bytes = field_of(path, name);
  if (bytes <= 0) {
    throw IoError{path + " does not tell " + name +
                  ", so how much memory this node has is unknown; mount /proc"};
  }
  return bytes;
}

/// The numbers of a list such as "0-2,5"; those beyond `most_nodes` are left out.
std::set<int> members_of(std::string const& list) {
  std::set<int> members;
  std::istringstream parts{list};
  for (std::string part; std::getline(parts, part, ',');) {
    int first = -1;
    int last = -1;
    int const read = std::sscanf(part.c_str(), "%d-%d", &first, &last);
    for (int one = first; read > 0 && one <= std::min(read > 1 ? last : first, most_nodes); ++one) {
      members.insert(one);
    }
  }
  return members;
}

/// The rest of the line of a file that begins with `name`; empty if there is none.
std::string line_of(std::string const& path, std::string const& name) {
  std::ifstream file{path};
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) {
      return line.substr(name.size());
    }
  }
  return {};
}

/// The sum of fields of the NUMA nodes whose memory this process may use, where a cpuset leaves
/// some out: the largest number else.
Bytes in_allowed_nodes(std::string const& root, std::vector<std::string> const& names) {
  std::string const folder = root + "/sys/devices/system/node/";
  auto const all = members_of(line_of(folder + "has_memory", ""));
  auto const allowed = members_of(line_of(root + "/proc/self/status", "Mems_allowed_list:"));
  constexpr Bytes unlimited = std::numeric_limits<Bytes>::max();
  if (allowed.empty() || std::ranges::includes(allowed, all)) {
    return unlimited;
  }
  Bytes sum = 0;
  for (int const node : allowed) {
    for (std::string const& name : names) {
      auto const field = fmt::format("Node {} {}:", node, name);
      sum +=
          std::atoll(line_of(fmt::format("{}node{}/meminfo", folder, node), field).c_str()) * KiB;
    }
  }
  return sum > 0 ? sum : unlimited;
}

/// The value of a line "name 123" of a file; 0 if it is not there.
Bytes entry_of(std::string const& path, std::string const& name) {
  std::ifstream file{path};
  std::string word;
  Bytes value{};
  while (file >> word >> value) {
    if (word == name) {
      return value;
    }
  }
  return 0;
}

std::vector<Cgroup> memory_cgroups(std::string const& root) {
  return cgroups_of("memory", root);
}

std::optional<Bytes> limit_of(Cgroup const& group) {
  return number_in(group.folder + (group.v2 ? "memory.max" : "memory.limit_in_bytes"));
}

/// What the memory cgroups of this process leave: the tightest one counts.
Bytes left_in_cgroup(std::string const& root) {
  Bytes left = std::numeric_limits<Bytes>::max();
  for (Cgroup const& group : memory_cgroups(root)) {
    auto const limit = limit_of(group);
    auto const used =
        number_in(group.folder + (group.v2 ? "memory.current" : "memory.usage_in_bytes"));
    if (limit && used) {
      // The page cache counts as used, but the kernel gives it back.
      std::string const prefix = group.v2 ? "" : "total_";
      Bytes const cached = entry_of(group.folder + "memory.stat", prefix + "inactive_file") +
                           entry_of(group.folder + "memory.stat", prefix + "active_file");
      // The cache may grow between the two readings, and a group without a limit has the largest
      // one.
      Bytes const taken = std::max<Bytes>(0, *used - cached);
      left = std::min(left, std::max<Bytes>(0, *limit - taken));
    }
  }
  return left;
}

/// A whole number in a variable, 2^30 at most; 0 if it is not set or is none.
Bytes number_of(char const* variable) {
  char const* const text = std::getenv(variable);
  Bytes number{};
  if (text != nullptr) {
    std::from_chars(text, text + std::string_view{text}.size(), number);
  }
  return std::clamp<Bytes>(number, 0, GiB);
}

/// Memory of this node that Slurm granted the job; the largest number if it does not tell.
Bytes granted_by_slurm() {
  Bytes mebibytes = number_of("SLURM_MEM_PER_NODE");
  if (mebibytes == 0) {
    mebibytes = number_of("SLURM_MEM_PER_CPU") * number_of("SLURM_CPUS_ON_NODE");
  }
  constexpr Bytes most = std::numeric_limits<Bytes>::max();
  return mebibytes == 0 || mebibytes > most / MiB ? most : mebibytes * MiB;
}

}  // namespace

Bytes resident_bytes() {
  return field_of("/proc/self/status", "VmRSS");
}
Bytes peak_resident_bytes() {
  return field_of("/proc/self/status", "VmHWM");
}
Bytes private_bytes() {
  return field_of("/proc/self/status", "RssAnon");
}
Bytes address_space_left() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<Bytes>::max();
  }
  return std::max<Bytes>(
      0, static_cast<Bytes>(limit.rlim_cur) - field_of("/proc/self/status", "VmSize"));
}
Bytes available_bytes(std::string const& root) {
  return std::min({node_memory(root, "MemAvailable"), left_in_cgroup(root), granted_by_slurm(),
                   in_allowed_nodes(root, {"MemFree", "Active(file)", "Inactive(file)"})});
}

MemoryLimit memory_limit(std::string const& root) {
  MemoryLimit limit{node_memory(root, "MemTotal")};
  for (Cgroup const& group : memory_cgroups(root)) {
    auto const bytes = limit_of(group);
    if (bytes && *bytes < limit.bytes) {
      limit = {*bytes, true};
    }
  }
  if (Bytes const allowed = in_allowed_nodes(root, {"MemTotal"}); allowed < limit.bytes) {
    limit = {allowed, true};
  }
  if (Bytes const granted = granted_by_slurm(); granted < limit.bytes) {
    limit = {granted, true};
  }
  return limit;
}

}  // namespace offstage::memory
