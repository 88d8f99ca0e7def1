#pragma once

#include <string>
#include <vector>

#include "base/units.hpp"
#include "launch/placement.hpp"
#include "launch/shortage.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::launch {

/// Where this rank was put, for the header.
struct RankPlace {
  std::string host;
  int world_rank{};
  int local_rank{};  ///< among the ranks that share memory
  int local_ranks{};
  Placement placement;
  int threads{};                ///< threads that OpenMP was told to use
  bool threads_given{};         ///< PlacementRules::threads was
  double quota{};               ///< as PlacementRules'
  bool bound{};                 ///< the system follows the placement
  bool memory_given{};          ///< a policy of numactl, Slurm or the like says where memory lies
  std::vector<int> inherited;   ///< the mask before
  topology::Topology topology;  ///< topology of the node
};

/// Finds this rank's place on its node and goes there: binds the calling thread (OpenMP's threads
/// and all later ones inherit it) and prefers its NUMA domain's memory, unless a
/// policy for memory was set before (numactl, Slurm's --mem-bind). Must run before the first OpenMP
/// region and before large memory is touched. Sets OpenMP's number of threads.
///
/// A topology that is not this machine's (HWLOC_XMLFILE, HWLOC_SYNTHETIC) is a rehearsal: ranks are
/// placed on all its CPUs and, without real ones, its GPUs; nothing is bound.
/// The least quota of the node's ranks (cpu_quota) takes the place of that in `rules`: ranks are
/// taken to be in one container, as nothing tells two of them apart.
/// Collective. Errors: mpi::AgreedError as place().
[[nodiscard]] RankPlace take_place(mpi::Communicator const& comm, PlacementRules const& rules);

/// Shortages of the node of these ranks; see find_shortages.
/// Collective over the node's ranks; every rank gets its node's.
[[nodiscard]] std::vector<Shortage> shortages(mpi::Communicator const& node, RankPlace const& place,
                                              Needs const& needs);

}  // namespace offstage::launch
