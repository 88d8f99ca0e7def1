#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace offstage::topology {

/// A NUMA domain that has CPUs; memory without any (HBM beside DRAM, a GPU's, CXL) is no place for
/// a rank.
struct NumaNode {
  int index{};            ///< the operating system's number
  int package{-1};        ///< number of its socket; -1 if unknown
  std::vector<int> cpus;  ///< logical CPUs, ascending
};

/// Something on the PCI bus: a GPU, a drive.
struct Device {
  std::string bus;   ///< "0000:17:00.0"; empty off the PCI bus
  std::string name;  ///< "cuda0", "nvme0n1"
  int numa{-1};      ///< index of the nearest NUMA domain; -1 if unknown
};

/// Hardware of this node as hwloc sees it: the real node, or one that HWLOC_XMLFILE or
/// HWLOC_SYNTHETIC describe.
struct Topology {
  std::vector<NumaNode> numa;           ///< ascending by index
  std::vector<std::vector<int>> cores;  ///< logical CPUs of each physical core
  std::vector<Device> gpus;             ///< in PCI order
  std::vector<Device> drives;
  bool real{};  ///< describes this machine: binding means something
};

/// The whole machine, also what this process's cpuset leaves out: the same on all ranks of a node.
/// Errors: Error (70) if hwloc fails.
[[nodiscard]] Topology discover();

/// The index of the NUMA domain that a logical CPU belongs to; -1 if unknown.
[[nodiscard]] int numa_of_cpu(Topology const& topology, int cpu);
/// How far two NUMA domains are apart: 0 the same, 1 on one socket, 2 farther, 3 if one is unknown.
[[nodiscard]] int distance(Topology const& topology, int numa, int other);

/// The NUMA domain nearest to the drive that holds `path`; -1 if that is unknown (network, loop,
/// several drives apart, a virtual disk, no such path).
[[nodiscard]] int numa_of_path(Topology const& topology, std::string const& path);
/// The same for a block device, named by its folder in sysfs ("/sys/dev/block/259:3"). A partition
/// lies on its disk; what is made of other devices (LVM, RAID) lies where all of them do.
[[nodiscard]] int numa_of_block_device(Topology const& topology, std::string const& folder);

/// A GPU that this process may use, in CUDA's order (CUDA_VISIBLE_DEVICES is heeded).
struct VisibleGpu {
  int ordinal{};    ///< CUDA's number in this process
  std::string bus;  ///< "0000:17:00.0"
  std::string name;
  std::string uuid{};  ///< tells MIG slices of one GPU apart; may be empty
  int major{};         ///< compute capability before the point; 0: not known

  /// Whether both are the same piece of hardware.
  [[nodiscard]] bool same_as(VisibleGpu const& other) const {
    return bus == other.bus && (uuid.empty() || other.uuid.empty() || uuid == other.uuid);
  }
};
/// Empty without a GPU, a driver or CUDA.
[[nodiscard]] std::vector<VisibleGpu> visible_gpus();

/// Restricts this thread, and threads it starts later, to these CPUs; true if the system did so.
/// Errors: none; a CPU outside the inherited mask is a precondition error.
bool bind_thread(std::vector<int> const& cpus);
/// True if a policy for memory was set before this process began: by numactl, Slurm's --mem-bind or
/// a launcher.
[[nodiscard]] bool has_memory_policy();
/// Lets memory that this thread and later ones touch first come from this NUMA domain while it has
/// some; no effect without NUMA or for -1.
void prefer_memory_of(int numa);

}  // namespace offstage::topology
