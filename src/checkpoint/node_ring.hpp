#pragma once

#include <cstddef>
#include <vector>

#include "platform/mpi/communicator.hpp"

namespace offstage::checkpoint {

/// The nodes of a run in the order of their first ranks. Each node's partner is the next one; the
/// last node's is the first.
class NodeRing {
 public:
  /// Collective. `node`: the ranks of this rank's node.
  NodeRing(mpi::Communicator const& comm, mpi::Communicator const& node);

  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }
  /// The number of this rank's node.
  [[nodiscard]] std::size_t here() const noexcept { return here_; }
  /// Ranks of a node, in order.
  [[nodiscard]] std::vector<int> const& ranks(std::size_t node) const { return nodes_.at(node); }
  /// The rank on the partner node that gets this rank's files. The partner's ranks are dealt
  /// equally to the ranks of a node.
  [[nodiscard]] int partner() const noexcept { return partner_; }

 private:
  std::vector<std::vector<int>> nodes_;
  std::size_t here_ = 0;
  int partner_ = 0;
};

}  // namespace offstage::checkpoint
