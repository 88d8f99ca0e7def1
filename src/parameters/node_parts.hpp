#pragma once

#include <vector>

#include "base/slice.hpp"
#include "base/units.hpp"
#include "state/shard.hpp"

namespace offstage::parameters {

/// The ways of layers' parts to nodes that hold whole layers. Each rank owns a part of a layer. On
/// every other node one rank takes it for its node: the k-th rank of a node sends to the k-th ranks
/// of the others, or, if a node has only n ranks, to its k mod n-th.
class NodeParts {
 public:
  /// `nodes`: the lowest rank on the node of each rank. Nodes need not have equally many ranks.
  NodeParts(state::ShardMap const& map, std::vector<int> nodes, int rank, Bytes element_bytes);

  [[nodiscard]] int nodes() const noexcept { return nodes_; }
  /// Bytes of all layers, one behind the other without padding between them.
  [[nodiscard]] Bytes bytes() const noexcept { return offsets_.back(); }
  /// The layer among them, and a rank's part of it, which may be empty.
  [[nodiscard]] Slice layer(int layer) const;
  [[nodiscard]] Slice part(int layer, int owner) const;
  /// Owners whose parts this rank takes, and ranks that take this one's.
  [[nodiscard]] std::vector<int> const& taken() const noexcept { return taken_; }
  [[nodiscard]] std::vector<int> const& takers() const noexcept { return takers_; }
  /// This rank's shard, layer by layer.
  [[nodiscard]] std::vector<Slice> shard() const;
  /// Parts that this rank writes: its shard and those that it takes.
  [[nodiscard]] std::vector<Slice> written() const;
  /// Parts of a layer by rank, for an exchange: those that each rank gets of this one, and those
  /// that this one gets of each.
  [[nodiscard]] std::vector<Slice> sent(int layer) const;
  [[nodiscard]] std::vector<Slice> received(int layer) const;

 private:
  state::ShardMap const& map_;
  int rank_;
  Bytes element_bytes_;
  int nodes_ = 0;
  std::vector<Bytes> offsets_;  ///< offsets of layers, and the end
  std::vector<int> taken_, takers_;
};

}  // namespace offstage::parameters
