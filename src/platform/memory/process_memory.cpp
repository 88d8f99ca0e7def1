#include "platform/memory/process_memory.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cgroup.hpp"
#include "base/error.hpp"

namespace offstage::memory {
namespace {

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
      // The cache may grow between the two readings, and a group without a limit has the largest one.
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
  return std::min({node_memory(root, "MemAvailable"), left_in_cgroup(root), granted_by_slurm()});
}

MemoryLimit memory_limit(std::string const& root) {
  MemoryLimit limit{node_memory(root, "MemTotal")};
  for (Cgroup const& group : memory_cgroups(root)) {
    auto const bytes = limit_of(group);
    if (bytes && *bytes < limit.bytes) {
      limit = {*bytes, true};
    }
  }
  if (Bytes const granted = granted_by_slurm(); granted < limit.bytes) {
    limit = {granted, true};
  }
  return limit;
}

}  // namespace offstage::memory
