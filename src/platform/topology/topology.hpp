#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace offstage::topology {

/// A NUMA domain.
struct NumaNode {
  int index{};            ///< the operating system's number
  std::vector<int> cpus;  ///< logical CPUs, ascending
};

/// Something on the PCI bus: a GPU, a drive.
struct Device {
  std::string bus;   ///< "0000:17:00.0"
  std::string name;  ///< "cuda0", "nvme0n1"
  int numa{-1};      ///< index of the nearest NUMA domain; -1 if unknown
};

/// What hwloc knows of this node: the real one, or what HWLOC_XMLFILE or HWLOC_SYNTHETIC describe.
struct Topology {
  std::vector<NumaNode> numa;           ///< ascending by index
  std::vector<std::vector<int>> cores;  ///< logical CPUs of each physical core
  std::vector<Device> gpus;             ///< in PCI order
  std::vector<Device> drives;
  bool real{};  ///< describes this machine: binding means something
};

/// Errors: Error (70) if hwloc fails.
[[nodiscard]] Topology discover();

/// The NUMA domain nearest to the drive that holds `path`; -1 if that is unknown (network, loop,
/// several drives, a virtual disk).
[[nodiscard]] int numa_of_path(Topology const& topology, std::string const& path);

/// A GPU that this process may use, in CUDA's order (CUDA_VISIBLE_DEVICES is heeded).
struct VisibleGpu {
  int ordinal{};    ///< CUDA's number in this process
  std::string bus;  ///< "0000:17:00.0"
  std::string name;
};
/// Empty without a GPU, a driver or CUDA.
[[nodiscard]] std::vector<VisibleGpu> visible_gpus();

/// Restricts this thread, and threads it starts later, to these CPUs; true if the system did so.
/// Errors: none; a CPU outside the inherited mask is a precondition error.
bool bind_thread(std::vector<int> const& cpus);
/// Lets this process's memory come from this NUMA domain first; no effect without NUMA.
void prefer_memory_of(int numa);

}  // namespace offstage::topology
