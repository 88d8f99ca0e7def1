#pragma once

#include <optional>
#include <vector>

#include "launch/placement.hpp"

namespace offstage::launch {

/// Each rank's GPU, or none where it sees none. See place().
[[nodiscard]] std::vector<std::optional<topology::VisibleGpu>> deal_gpus(
    topology::Topology const& node, std::vector<RankOnNode> const& ranks, bool share);

/// The GPUs of enough compute capability; all if none has it.
[[nodiscard]] std::vector<topology::VisibleGpu> fit_gpus(std::vector<topology::VisibleGpu> gpus);

/// Each rank's CPUs. `near` holds the NUMA domain that a rank wants, -1 for any. See place().
[[nodiscard]] std::vector<std::vector<int>> deal_cpus(topology::Topology const& node,
                                                      std::vector<RankOnNode> const& ranks,
                                                      std::vector<int> const& near, int threads);

/// The NUMA domain of a GPU; -1 if the topology does not know it.
[[nodiscard]] int numa_of_gpu(topology::Topology const& node, topology::VisibleGpu const& gpu);

}  // namespace offstage::launch
