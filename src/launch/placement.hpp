#pragma once

#include <optional>
#include <string>
#include <vector>

#include "platform/topology/topology.hpp"

namespace offstage::launch {

/// Resources that one rank brings to its node.
struct RankOnNode {
  int world_rank{};
  std::vector<int> allowed_cpus;           ///< its inherited mask, ascending, not empty
  std::vector<topology::VisibleGpu> gpus;  ///< GPUs that it may use
  int given_gpus{};  ///< GPUs of the node that Slurm gave, but for those left out; 0: not known
};

/// Where one rank runs.
struct Placement {
  std::optional<topology::VisibleGpu> gpu;
  int numa{-1};  ///< NUMA domain of all its CPUs, and so of its memory; -1: unknown or several
  std::vector<int> cpus;  ///< inside its inherited mask, ascending, never empty
  /// Number of threads: as asked for, or one per physical core, shared ones divided, and at most
  /// threads_within() the quota; at least 1.
  int threads{};
  int gpu_ranks{};  ///< ranks of the node that use its GPU, itself included; 0 without one
};

struct PlacementRules {
  int threads = 0;         ///< threads of each rank; 0: as many as its cores, or its quota
  bool share_gpu = false;  ///< several ranks may use one GPU
  double quota = 0.0;      ///< cores of which the ranks together get the time; 0: of all
};

/// The number of threads of each rank where so many share the time of `quota` cores: rounded, so
/// that 1.5 cores make 2 threads, which have to pause, and at least 1.
[[nodiscard]] int threads_within(double quota, int ranks);

/// Physical cores below these CPUs; a CPU that the topology does not know is one of its own.
[[nodiscard]] int count_cores(topology::Topology const& node, std::vector<int> const& cpus);

/// Places all ranks of a node; the same answer on each of them. Pure.
///
/// GPUs:   a rank that sees one GPU uses it. Ranks that see several get the assignment with the
///         least distance to their CPUs; where masks span the NUMA domains, GPUs are dealt evenly
///         over the domains and CPUs follow the GPU. Alike ranks get them in CUDA's order.
/// CPUs:   ranks whose inherited masks are disjoint keep them whole; ranks that share CPUs divide
///         them, whole physical cores while there are enough, each rank inside one NUMA domain
///         where one has room or would have with a fifth fewer cores for each rank; else in few,
///         and whole ones. Ranks with fewer CPUs than there are of them share their mask.
/// Threads: a rank gets all CPUs of its share, so that its I/O threads and other jobs have room;
///         where `threads` cores of one domain are enough, that domain's alone.
/// Errors: UsageError naming both ranks, their GPU and the remedy (more GPUs, fewer ranks,
///         CUDA_VISIBLE_DEVICES per rank, device.share-gpu) if two would use one GPU. IoError if
///         that is so because the node shows fewer GPUs than Slurm gave.
[[nodiscard]] std::vector<Placement> place(topology::Topology const& node,
                                           std::vector<RankOnNode> const& ranks,
                                           PlacementRules const& rules);

}  // namespace offstage::launch
