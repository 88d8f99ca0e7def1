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

/// The time that a node's slowest rank takes for its own part of a step, without waits for other
/// ranks.
struct NodePace {
  std::string node;
  Seconds step{};
};

struct SlowNode {
  std::string node;
  std::string sentence;
};

/// Nodes that take more than 1.5 times as long as the median node, and 10 ms more, the slowest
/// first. The median of an even number of nodes is the faster of the two in the middle. Pure.
[[nodiscard]] std::vector<SlowNode> slow_nodes(std::span<NodePace const> nodes);

/// Notices nodes for which the others wait.
///
/// Limits: waits inside MPI are seen. NCCL's waits are part of the device's work: with NCCL all
///         nodes look alike, and none is named. Ranks with fewer micro-batches than others do not
///         count.
class SlowNodes {
 public:
  /// Both must outlive this object. `config` may be settled until the first step.
  SlowNodes(config::RunConfig const& config, mpi::Communicator const& comm);

  /// Call it after each step. `own` is the time that this rank took without waiting for others.
  /// Every 32 steps it returns sentences about these, one for each slow node and each node once;
  /// the same on all ranks. Collective.
  [[nodiscard]] std::vector<std::string> step_done(Seconds own);
  /// Sentences about all steps of this start but its first; none after fewer than 4. Collective.
  [[nodiscard]] std::vector<std::string> conclude() const;

 private:
  struct Sum {
    Seconds own{};
    std::int64_t steps = 0;
  };
  /// Returns whether no rank has more micro-batches than this one.
  [[nodiscard]] bool is_judged() const;
  [[nodiscard]] std::vector<SlowNode> look_at(Sum const& sum) const;

  config::RunConfig const& config_;
  mpi::Communicator const& comm_;
  bool begun_ = false;  ///< the first step, which touches memory for the first time, is done
  Sum all_, recent_;
  std::set<std::string> named_;
};

}  // namespace offstage::train
