#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <memory>

#include "base/error.hpp"
#include "platform/topology/topology.hpp"

namespace offstage::topology {
namespace {

/// A set for any number of CPUs: cpu_set_t alone ends at 1024.
class CpuSet {
 public:
  explicit CpuSet(int cpus) : bytes_{CPU_ALLOC_SIZE(cpus)}, set_{CPU_ALLOC(cpus)} {
    require(set_ != nullptr, "bind_thread: no memory for a CPU set");
    CPU_ZERO_S(bytes_, set_.get());
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] cpu_set_t* get() const { return set_.get(); }

 private:
  struct Free {
    void operator()(cpu_set_t* set) const noexcept { CPU_FREE(set); }
  };
  std::size_t bytes_;
  std::unique_ptr<cpu_set_t, Free> set_;
};

/// Linux is built for at most 8192 CPUs.
constexpr int most_cpus = 8192;

}  // namespace

bool bind_thread(std::vector<int> const& cpus) {
  require(!cpus.empty(), "bind_thread: at least one CPU");
  CpuSet const inherited{most_cpus};
  CpuSet const wanted{most_cpus};
  if (sched_getaffinity(0, inherited.bytes(), inherited.get()) != 0) {
    return false;
  }
  for (int const cpu : cpus) {
    bool const allowed =
        cpu >= 0 && cpu < most_cpus &&
        CPU_ISSET_S(static_cast<std::size_t>(cpu), inherited.bytes(), inherited.get()) != 0;
    require(allowed, "bind_thread: a CPU outside the inherited mask");
    CPU_SET_S(static_cast<std::size_t>(cpu), wanted.bytes(), wanted.get());
  }
  return sched_setaffinity(0, wanted.bytes(), wanted.get()) == 0;
}

bool has_memory_policy() {
  int mode = MPOL_DEFAULT;
  return syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 && mode != MPOL_DEFAULT;
}

void prefer_memory_of(int numa) {
  constexpr int word = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, 1024 / word> nodes{};
  if (numa < 0 || numa >= 1024) {
    return;
  }
  nodes[static_cast<std::size_t>(numa / word)] |= 1UL << (numa % word);
  // A kernel without NUMA or a container may refuse; then first touch alone decides.
  static_cast<void>(
      syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes.data(), nodes.size() * word + 1));
}

}  // namespace offstage::topology
