#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/file_exchange.hpp"
#include "checkpoint/local_directory.hpp"
#include "checkpoint/node_ring.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/shard.hpp"

namespace offstage::checkpoint {

/// Directories of a run's levels 1 and 3, of the same path on each node.
struct LevelPlaces {
  std::string own;     ///< level 1
  std::string copies;  ///< level 3; the directory need not exist
};

/// Finds the parts of checkpoints of level 1 that lie on the nodes of a run, each node's own and
/// copies of others', and gives every node those that its ranks read. Parts of one step belong
/// together if the masters beside them say the same.
///
/// Collective: all members. Errors: mpi::AgreedError.
class LevelParts {
 public:
  /// Nobody else uses `comm`. `comm` and `node` must outlive this object.
  /// `starts`: as of LocalDirectory.
  LevelParts(LevelPlaces places, std::vector<Start> starts, mpi::Communicator const& comm,
             mpi::Communicator const& node);

  struct Found {
    /// Step names, newest first. Every node can be given the parts that it needs, or has a master
    /// at least. In the second case loading finds out.
    std::vector<std::string> whole;
    /// All other step names; the log names them. A save that is not in the run's history is one.
    std::vector<std::string> lost;
  };
  /// Looks at all nodes, for ranks that have their shards by `map`. A part that names, sizes and
  /// masters show to be damaged counts as absent.
  /// Errors: IoError; DataError if a format is newer than this program's.
  [[nodiscard]] Found find(state::ShardMap const& map);
  /// The newest step up to `last` of which every part lay on two nodes at the last find(); none if
  /// there is no such step.
  [[nodiscard]] std::optional<std::int64_t> newest_on_two_nodes(std::int64_t last) const;
  /// Copies to each node's level 1 the parts of a step that it lacks, durably, and logs it. find()
  /// has just found them. Errors: IoError, also if there is no room.
  void bring(std::string const& name);

 private:
  /// One step directory of one node.
  struct Holding {
    std::size_t node{};
    bool is_copy{};
    std::string name;
    std::uint64_t save{};    ///< checksum of its master's contents
    std::uint64_t start{};   ///< the master's start
    std::int64_t format{};   ///< the master's format
    std::vector<bool> here;  ///< by the rank that wrote it: whether its part lies here
  };
  /// The parts of one save that move to one node.
  struct Move {
    std::size_t to{};
    Holding const* from{};
    int rank{};
  };
  struct Plan {
    std::vector<Move> moves;
    std::vector<std::size_t> without_master;  ///< nodes whose level 1 has nothing of this save
    Holding const* master{};                  ///< a holding that has a master
    bool whole = false;
  };

  [[nodiscard]] std::string look() const;
  /// Takes away the holdings that are not in the run's history. Returns the names of those.
  std::set<std::string> leave_other_branches();
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
  std::vector<Start> starts_;
  mpi::Communicator const& comm_;
  mpi::Communicator const& node_;
  NodeRing ring_;
  std::vector<Holding> holdings_;  ///< holdings of all nodes at the last find(); this node's first
  std::optional<state::ShardMap> map_;  ///< the map that find() was given
};

}  // namespace offstage::checkpoint
