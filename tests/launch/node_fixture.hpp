#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "launch/placement.hpp"

namespace offstage::launch {

/// A node as hwloc describes it in a file of tests/launch/topologies: two sockets of four cores and
/// two GPUs each.
inline topology::Topology topology_in(std::string const& file) {
  setenv("HWLOC_XMLFILE", (std::string{OFFSTAGE_TOPOLOGIES "/"} + file).c_str(), 1);
  auto const node = topology::discover();
  unsetenv("HWLOC_XMLFILE");
  return node;
}

/// An invented node: "pack:2 [numa] core:4 pu:2".
inline topology::Topology synthetic(std::string const& description) {
  setenv("HWLOC_SYNTHETIC", description.c_str(), 1);
  auto const node = topology::discover();
  unsetenv("HWLOC_SYNTHETIC");
  return node;
}

/// The GPUs of a node as CUDA numbers them without CUDA_VISIBLE_DEVICES.
inline std::vector<topology::VisibleGpu> all_gpus(topology::Topology const& node) {
  std::vector<topology::VisibleGpu> gpus;
  for (auto const& gpu : node.gpus) {
    gpus.push_back({static_cast<int>(gpus.size()), gpu.bus, "Test GPU"});
  }
  return gpus;
}

/// All but one hidden by CUDA_VISIBLE_DEVICES.
inline std::vector<topology::VisibleGpu> only_gpu(topology::Topology const& node, int number) {
  return {{0, node.gpus[static_cast<std::size_t>(number)].bus, "Test GPU"}};
}

inline std::vector<int> range(int first, int last) {
  std::vector<int> cpus;
  for (int cpu = first; cpu <= last; ++cpu) {
    cpus.push_back(cpu);
  }
  return cpus;
}

/// Ranks that nothing tells apart.
inline std::vector<RankOnNode> alike(int count, std::vector<int> const& cpus,
                                     std::vector<topology::VisibleGpu> const& gpus) {
  std::vector<RankOnNode> ranks;
  for (int rank = 0; rank < count; ++rank) {
    ranks.push_back({rank, cpus, gpus});
  }
  return ranks;
}

}  // namespace offstage::launch
