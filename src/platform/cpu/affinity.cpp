#include "platform/cpu/affinity.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

namespace offstage::cpu {

std::vector<int> allowed_cpus() {
  // The kernel refuses a set with less room than it has CPUs, and cpu_set_t ends at 1024.
  constexpr std::size_t most_sets = 64;
  std::vector<cpu_set_t> sets(1);
  while (sched_getaffinity(0, sets.size() * sizeof(cpu_set_t), sets.data()) != 0) {
    if (errno != EINVAL || sets.size() >= most_sets) {
      return {};
    }
    sets.resize(2 * sets.size());
  }
  std::vector<int> cpus;
  std::size_t const bytes = sets.size() * sizeof(cpu_set_t);
  for (std::size_t cpu = 0; cpu < sets.size() * CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET_S(cpu, bytes, sets.data())) {
      cpus.push_back(static_cast<int>(cpu));
    }
  }
  return cpus;
}

std::string format_cpus(std::vector<int> const& cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) {
      ++last;
    }
    if (!text.empty()) {
      text += ',';
    }
    text += last == i ? fmt::format("{}", cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[last]);
    i = last + 1;
  }
  return text;
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace offstage::cpu
