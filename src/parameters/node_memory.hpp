#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/units.hpp"
#include "parameters/node_parts.hpp"
#include "platform/memory/shared_file.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/shard.hpp"

namespace offstage::parameters {

/// Host memory that the ranks of a node share, with whole layers of the working copy, once per
/// node.
///
/// Memory:     all layers once per node, each rank's part near it. Nothing of it stays in /dev/shm,
///             whatever ends the run. Every rank maps all layers, and its own shard once more, one
///             layer behind the other. Chunks are whole pages, so that this is possible, and an
///             update writes a subgroup in one piece.
/// Order:      ranks write their shards while nobody reads them. exchange brings them to other
///             nodes.
/// Collective: construction and exchange, over `comm`.
/// Threads:    one, the one that calls MPI. Any may use the bytes.
/// Errors:     construction throws mpi::AgreedError: /dev/shm has no room (74), or pages of the
///             system are larger than a chunk (64).
class NodeMemory {
 public:
  /// Returns the bytes that the ranks of each node can share: the least of all nodes, 0 if the
  /// ranks of one have no memory in common. Collective over `comm`.
  [[nodiscard]] static Bytes room(mpi::Communicator const& comm, mpi::Communicator const& node,
                                  Bytes element_bytes);
  /// Bytes of the system's own that a rank's mappings of `elements` in all take: 8 for each page.
  [[nodiscard]] static Bytes page_table_bytes(std::int64_t elements, Bytes element_bytes);

  /// `comm` and `map` outlive it; `node`: ranks of it that share this node's memory.
  NodeMemory(state::ShardMap const& map, mpi::Communicator const& comm, mpi::Communicator node,
             Bytes element_bytes);

  /// Brings all parts of a layer to all nodes. Returns when this node has all that ranks wrote to
  /// the layer before their calls.
  void exchange(int layer);
  [[nodiscard]] std::span<std::byte> layer(int layer) const;
  /// The rank's own shard.
  [[nodiscard]] std::span<std::byte> shard() const noexcept { return shard_.bytes(); }
  /// All layers.
  [[nodiscard]] std::span<std::byte> whole() const noexcept { return whole_.bytes(); }
  /// Returns this rank's part of the bytes by which the node's sum of resident memory exceeds the
  /// memory that is there. Each rank's figure counts all that it maps.
  [[nodiscard]] Bytes counted_again() const noexcept;

 private:
  mpi::Communicator const& comm_;
  mpi::Communicator node_;
  NodeParts parts_;
  memory::SharedMapping whole_;
  memory::SharedMapping shard_;
};

}  // namespace offstage::parameters
