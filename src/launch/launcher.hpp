#pragma once

#include <string>
#include <vector>

#include "base/units.hpp"
#include "launch/placement.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::launch {

/// Where this rank was put, for the header.
struct RankPlace {
  std::string host;
  int local_rank{};  ///< among the ranks that share memory
  int local_ranks{};
  Placement placement;
  int threads{};
  bool bound{};  ///< the system follows the placement
};

/// Finds this rank's place on its node and goes there: binds the calling thread (OpenMP's threads and
/// all later ones inherit it) and prefers its NUMA domain's memory. Must run before the first OpenMP
/// region and before large memory is touched. Sets OpenMP's number of threads.
/// Collective. Errors: mpi::AgreedError as place().
[[nodiscard]] RankPlace take_place(mpi::Communicator const& comm, PlacementRules const& rules);

/// What the node must grant, and what it grants.
struct Needs {
  Bytes host_memory{};  ///< planned per node, everything included
  bool asynchronous_io = false;
  std::int64_t aio_requests{};  ///< in flight per rank
  std::string storage_path;     ///< tiers.path or empty
};
/// One line per shortage, with the figures and the remedy: fewer CPUs than ranks or threads, memlock
/// below what pinned buffers take, fs.aio-max-nr minus aio-nr below the requests of the node's ranks,
/// a cgroup limit below the plan, a storage path on another NUMA domain. Empty if all is well.
/// Collective over the node's ranks; every rank gets its node's lines.
[[nodiscard]] std::vector<std::string> shortages(mpi::Communicator const& node,
                                                 topology::Topology const& topology,
                                                 RankPlace const& place, Needs const& needs);

}  // namespace offstage::launch
