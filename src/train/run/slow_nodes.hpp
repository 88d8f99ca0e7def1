#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "platform/mpi/communicator.hpp"

namespace offstage::train {

/// The time that a node's slowest rank takes for its own part of a step: all but what it waits for
/// other ranks.
struct NodePace {
  std::string node;
  Seconds step{};
};

struct SlowNode {
  std::string node;
  std::string sentence;
};

/// Nodes that take more than half as long again as the median node, and 10 ms more, the slowest
/// first. Of an even number of nodes the faster of the two in the middle is the median. Pure.
[[nodiscard]] std::vector<SlowNode> slow_nodes(std::span<NodePace const> nodes);

/// Notices nodes for which the others wait.
///
/// Limits: waits inside MPI are seen. NCCL's are part of the device's work: with it all nodes look
///         alike, and none is named. Ranks that have a micro-batch less than others do not count.
class SlowNodes {
 public:
  SlowNodes(config::RunConfig const& config, mpi::Communicator const& comm);

  /// After each step; `own` is the time that this rank took without waiting for others. Returns
  /// sentences after every 32 steps, about those, of each node once; the same on all ranks.
  /// Collective.
  [[nodiscard]] std::vector<std::string> step_done(Seconds own);
  /// The same about all steps of this start but its first; none after fewer than 4. Collective.
  [[nodiscard]] std::vector<std::string> conclude() const;

 private:
  struct Sum {
    Seconds own{};
    std::int64_t steps = 0;
  };
  [[nodiscard]] std::vector<SlowNode> look_at(Sum const& sum) const;

  mpi::Communicator const& comm_;
  std::string node_;
  bool judged_;         ///< this rank has as many micro-batches as any
  bool begun_ = false;  ///< the first step, which touches memory for the first time, is done
  Sum all_, recent_;
  std::set<std::string> named_;
};

}  // namespace offstage::train
