#pragma once

#include <optional>
#include <string>
#include <vector>

#include "platform/topology/topology.hpp"

namespace offstage::launch {

/// What one rank brings to its node.
struct RankOnNode {
  int world_rank{};
  std::vector<int> allowed_cpus;           ///< its inherited mask
  std::vector<topology::VisibleGpu> gpus;  ///< that it may use
};

/// Where one rank runs.
struct Placement {
  std::optional<topology::VisibleGpu> gpu;
  int numa{-1};           ///< of its memory; -1 if unknown
  std::vector<int> cpus;  ///< inside its inherited mask, never empty
};

struct PlacementRules {
  int threads = 0;         ///< CPUs wanted per rank; 0: an equal share
  bool share_gpu = false;  ///< several ranks may use one GPU
};

/// Places all ranks of a node; the same answer on each of them. Pure.
///
/// Masks:  ranks whose inherited masks are disjoint keep them whole; ranks that share a mask divide its
///         cores, whole physical cores while there are enough, each rank inside one NUMA domain where
///         one has room.
/// GPUs:   a rank that sees one GPU uses it. Ranks that see several take the free one nearest to their
///         CPUs; with masks over all NUMA domains, GPUs are dealt evenly over the domains first and
///         CPUs follow the GPU.
/// Errors: UsageError naming both ranks, their GPU and the remedy (more GPUs, fewer ranks,
///         CUDA_VISIBLE_DEVICES per rank, device.share-gpu) if two would use one GPU.
[[nodiscard]] std::vector<Placement> place(topology::Topology const& node,
                                           std::vector<RankOnNode> const& ranks,
                                           PlacementRules const& rules);

}  // namespace offstage::launch
