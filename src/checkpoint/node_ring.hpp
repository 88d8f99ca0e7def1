#pragma once

#include <cstddef>
#include <vector>

#include "platform/mpi/communicator.hpp"

namespace offstage::checkpoint {

/// The nodes of a run in the order of their first ranks, each with the next one as its partner, the
/// last with the first.
class NodeRing {
 public:
  /// Collective. `node`: the ranks of this rank's node.
  NodeRing(mpi::Communicator const& comm, mpi::Communicator const& node);

  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }
  /// Whose number this rank's node is.
  [[nodiscard]] std::size_t here() const noexcept { return here_; }
  /// Ranks of a node, in order.
  [[nodiscard]] std::vector<int> const& ranks(std::size_t node) const { return nodes_.at(node); }
  /// The rank of this rank's partner that gets its files. Ranks of a node share those of the
  /// partner equally.
  [[nodiscard]] int partner() const noexcept { return partner_; }

 private:
  std::vector<std::vector<int>> nodes_;
  std::size_t here_ = 0;
  int partner_ = 0;
};

}  // namespace offstage::checkpoint
