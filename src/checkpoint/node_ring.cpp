#include "checkpoint/node_ring.hpp"

#include <map>

namespace offstage::checkpoint {

NodeRing::NodeRing(mpi::Communicator const& comm, mpi::Communicator const& node) {
  auto const first_of_mine = static_cast<int>(node.minimum(std::int64_t{comm.rank()}));
  auto const first = comm.all_gather_value(first_of_mine);
  std::map<int, std::vector<int>> by_first;
  for (int rank = 0; rank < comm.size(); ++rank) {
    by_first[first[static_cast<std::size_t>(rank)]].push_back(rank);
  }
  for (auto& [first_rank, ranks] : by_first) {
    if (first_rank == first_of_mine) {
      here_ = nodes_.size();
    }
    nodes_.push_back(std::move(ranks));
  }
  auto const& next = nodes_[(here_ + 1) % nodes_.size()];
  partner_ = next[static_cast<std::size_t>(node.rank()) % next.size()];
}

}  // namespace offstage::checkpoint
