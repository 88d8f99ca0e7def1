#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "platform/memory/process_memory.hpp"
#include "platform/topology/topology.hpp"

namespace offstage::launch {

/// Demands of a run on each node.
struct Needs {
  Bytes host_memory{};                     ///< planned per node, everything included
  Bytes allocation{};                      ///< part of it that is still to be allocated
  std::int64_t aio_requests{};             ///< in flight per rank; 0 without asynchronous I/O
  std::vector<std::string> storage_paths;  ///< the directories of tiers.path
};

/// Resources that one rank was granted.
struct RankFigures {
  int world_rank{};
  std::vector<int> inherited;  ///< its mask at the start
  int inherited_cores{};       ///< physical cores that it lies on
  std::vector<int> cpus;       ///< processors that it runs on now
  int threads{};
  bool threads_given{};  ///< run.threads was
  bool openmp_binds{};   ///< OMP_PROC_BIND or OMP_PLACES is set
  int numa{-1};
  Bytes address_space{std::numeric_limits<Bytes>::max()};  ///< address space that RLIMIT_AS leaves
};

/// Resources that a node grants.
struct NodeFigures {
  std::string host;
  std::vector<RankFigures> ranks;
  int cpus{};  ///< processors of the whole node
  memory::MemoryLimit memory;
  Bytes memory_left{};
  std::int64_t aio_most{-1};       ///< fs.aio-max-nr; -1: unknown
  std::int64_t aio_used{-1};       ///< fs.aio-nr
  std::vector<int> storage_numas;  ///< NUMA domains of Needs::storage_paths; -1: unknown
  std::vector<topology::Device> drives;
};

/// Something that a node does not grant: one line with the figures and the remedy.
struct Shortage {
  std::string text;
  std::optional<ExitCode> ends_with;  ///< the run cannot succeed; empty: it is slower
};

/// Fatal:    a plan above the memory limit, or a rank's part of it above what ulimit -v leaves
///           (64); fs.aio-max-nr minus aio-nr below the requests of the node's ranks (74).
/// Warnings: more threads than CPUs; ranks bound to one CPU of many; less memory left than is to be
///           taken; a storage path whose NUMA domain holds no rank.
/// Pure. Empty if all is well.
[[nodiscard]] std::vector<Shortage> find_shortages(NodeFigures const& node, Needs const& needs);

}  // namespace offstage::launch
