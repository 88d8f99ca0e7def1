#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file_exchange.hpp"
#include "checkpoint/node_ring.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/shard.hpp"

namespace offstage::checkpoint {

/// Where levels 1 and 3 of a run lie, the same path on each node.
struct LevelPlaces {
  std::string own;     ///< level 1
  std::string copies;  ///< level 3; need not be there
};

/// Parts of checkpoints of level 1 that lie on the nodes of a run, its own and copies of others',
/// and what it takes to give every node those that its ranks read. Parts of one step belong
/// together if the masters beside them say the same.
///
/// Collective: all members. Errors: mpi::AgreedError.
class LevelParts {
 public:
  /// `comm` is of nobody else; both outlive it.
  LevelParts(LevelPlaces places, mpi::Communicator const& comm, mpi::Communicator const& node);

  struct Found {
    /// Step names, newest first. Every node can be given what it needs, or has a master at least:
    /// then loading tells.
    std::vector<std::string> whole;
    std::vector<std::string> lost;  ///< all others; said so (log)
  };
  /// Looks at all nodes, for ranks that have their shards by `map`. What is damaged as far as
  /// names, sizes and masters tell counts as absent. Errors: IoError; DataError where a format is
  /// newer than this program's.
  [[nodiscard]] Found find(state::ShardMap const& map);
  /// The newest step up to `last` of which every part lies on two nodes, as of find(); none if there
  /// is none.
  [[nodiscard]] std::optional<std::int64_t> newest_on_two_nodes(std::int64_t last) const;
  /// Copies to each node's level 1 what it lacks of a step, as far as find() has just found that,
  /// durably, and says so (log). Errors: IoError, also where there is no room.
  void bring(std::string const& name);

 private:
  /// One step directory of one node.
  struct Holding {
    std::size_t node{};
    bool is_copy{};
    std::string name;
    std::uint64_t save{};    ///< checksum of its master
    std::int64_t format{};   ///< as its master says
    std::vector<bool> here;  ///< by rank that wrote it
  };
  /// The parts of one save that move to one node.
  struct Move {
    std::size_t to{};
    Holding const* from{};
    int rank{};
  };
  struct Plan {
    std::vector<Move> moves;
    std::vector<std::size_t> without_master;  ///< nodes that have nothing of it in level 1
    Holding const* master{};                  ///< one that has a master
    bool whole = false;
  };

  [[nodiscard]] std::string look() const;
  [[nodiscard]] bool is_on_every_node(std::string const& name) const;
  [[nodiscard]] static std::vector<Holding> parse(std::vector<std::string> const& texts,
                                                  std::vector<std::size_t> const& nodes);
  [[nodiscard]] Plan plan(std::string const& name, std::uint64_t save) const;
  /// The plan for the save of this name that is whole with the fewest moves.
  [[nodiscard]] Plan best_plan(std::string const& name) const;
  [[nodiscard]] std::string directory_of(Holding const& holding) const;
  /// The files that this rank sends.
  [[nodiscard]] std::vector<SentFile> files_for(Plan const& plan) const;

  LevelPlaces places_;
  mpi::Communicator const& comm_;
  mpi::Communicator const& node_;
  NodeRing ring_;
  std::vector<Holding> holdings_;       ///< of all nodes, as of find(); own ones first
  std::optional<state::ShardMap> map_;  ///< of find()
};

}  // namespace offstage::checkpoint
