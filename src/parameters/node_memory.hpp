#pragma once

#include <cstddef>
#include <span>

#include "base/units.hpp"
#include "parameters/node_parts.hpp"
#include "platform/memory/shared_file.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/shard.hpp"

namespace offstage::parameters {

/// Whole layers of the working copy in host memory, once per node, which the ranks of the node share.
///
/// Memory:     host: all layers once per node, each rank's part near it; nothing of it is left in /dev/shm, whatever ends
///             the run. Every rank maps all of it, and its own shard once more, one layer behind the other: chunks are
///             whole pages, so that an update writes a subgroup in one piece where layers lie whole.
/// Order:      ranks write their shards at any time that nobody reads them; exchange brings parts to other nodes.
/// Collective: construction and exchange, over `comm`.
/// Threads:    one, the one that calls MPI; the bytes may be used by any.
/// Errors:     construction: mpi::AgreedError: /dev/shm has no room (74); pages of the system are larger than a chunk (64).
class NodeMemory {
 public:
  /// `comm` and `map` outlive it; `node`: ranks of it that share this node's memory.
  NodeMemory(state::ShardMap const& map, mpi::Communicator const& comm, mpi::Communicator node,
             Bytes element_bytes);

  /// Brings all parts of a layer to all nodes: returns when all that ranks wrote to it before their calls is there.
  void exchange(int layer);
  [[nodiscard]] std::span<std::byte> layer(int layer) const;
  /// The rank's own shard.
  [[nodiscard]] std::span<std::byte> shard() const noexcept { return shard_.bytes(); }
  /// All layers.
  [[nodiscard]] std::span<std::byte> whole() const noexcept { return whole_.bytes(); }
  /// Bytes by which the node's sum of resident memory exceeds what is there, this rank's part of it: each rank's counts all
  /// that it maps.
  [[nodiscard]] Bytes counted_again() const noexcept;

 private:
  mpi::Communicator const& comm_;
  mpi::Communicator node_;
  NodeParts parts_;
  memory::SharedMapping whole_;
  memory::SharedMapping shard_;
};

}  // namespace offstage::parameters
