#include "platform/memory/process_memory.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace offstage::memory {
namespace {

/// The value of a line "Name:   123 kB" of a /proc file; 0 if it is not there.
Bytes field_of(char const* path, std::string const& name) {
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

std::optional<Bytes> number_in(std::string const& path) {
  std::ifstream file{path};
  Bytes value{};
  if (file >> value) {
    return value;
  }
  return std::nullopt;  // no such file, or "max"
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

/// What the memory cgroup of this process leaves, going up to the root: the tightest one counts.
Bytes left_in_cgroup() {
  Bytes left = std::numeric_limits<Bytes>::max();
  std::ifstream membership{"/proc/self/cgroup"};
  std::string line;
  while (std::getline(membership, line)) {
    auto const first = line.find(':');
    auto const second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    auto const controllers = line.substr(first + 1, second - first - 1);
    bool const v2 = controllers.empty();
    if (!v2 && controllers.find("memory") == std::string::npos) {
      continue;
    }
    std::string const root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    std::string path = line.substr(second + 1);
    while (true) {
      std::string const folder = root + path + "/";
      auto const limit = number_in(folder + (v2 ? "memory.max" : "memory.limit_in_bytes"));
      auto const used = number_in(folder + (v2 ? "memory.current" : "memory.usage_in_bytes"));
      if (limit && used) {
        // The page cache counts as used, but the kernel gives it back.
        std::string const prefix = v2 ? "" : "total_";
        Bytes const cached = entry_of(folder + "memory.stat", prefix + "inactive_file") +
                             entry_of(folder + "memory.stat", prefix + "active_file");
        left = std::min(left, std::max<Bytes>(0, *limit - *used + cached));
      }
      if (path.empty() || path == "/") {
        break;
      }
      path.erase(path.rfind('/'));
    }
  }
  return left;
}

}  // namespace

Bytes resident_bytes() {
  return field_of("/proc/self/status", "VmRSS");
}
Bytes peak_resident_bytes() {
  return field_of("/proc/self/status", "VmHWM");
}
Bytes available_bytes() {
  return std::min(field_of("/proc/meminfo", "MemAvailable"), left_in_cgroup());
}

}  // namespace offstage::memory
