#include "parameters/node_parts.hpp"

#include <cstddef>
#include <map>

#include "base/chunk.hpp"
#include "base/error.hpp"

namespace offstage::parameters {

NodeParts::NodeParts(state::ShardMap const& map, std::vector<int> nodes, int rank,
                     Bytes element_bytes)
    : map_{map}, rank_{rank}, element_bytes_{element_bytes}, offsets_{0} {
  require(std::ssize(nodes) == map.ranks() && rank >= 0 && rank < map.ranks(),
          "NodeParts: a node for each rank");
  for (auto const& each : map.layers()) {
    offsets_.push_back(offsets_.back() + each.padded_elements() * element_bytes);
  }
  std::map<int, std::vector<int>> members;
  std::vector<std::size_t> places;
  for (int each = 0; each < map.ranks(); ++each) {
    auto& there = members[nodes[static_cast<std::size_t>(each)]];
    places.push_back(there.size());
    there.push_back(each);
  }
  nodes_ = static_cast<int>(members.size());
  int const here = nodes[static_cast<std::size_t>(rank)];
  for (auto const& [node, ranks] : members) {
    if (node != here) {
      takers_.push_back(ranks[places[static_cast<std::size_t>(rank)] % ranks.size()]);
      auto const& mine = members[here];
      for (int const owner : ranks) {
        if (mine[places[static_cast<std::size_t>(owner)] % mine.size()] == rank) {
          taken_.push_back(owner);
        }
      }
    }
  }
}

Slice NodeParts::layer(int layer) const {
  auto const at = static_cast<std::size_t>(layer);
  return {offsets_[at], offsets_[at + 1] - offsets_[at]};
}

Slice NodeParts::part(int layer, int owner) const {
  state::ChunkRange const range = map_.chunks(layer, owner);
  Bytes const chunk = chunk_elements * element_bytes_;
  return {offsets_[static_cast<std::size_t>(layer)] + range.first * chunk, range.count * chunk};
}

std::vector<Slice> NodeParts::shard() const {
  std::vector<Slice> parts;
  for (int layer = 0; layer < static_cast<int>(map_.layers().size()); ++layer) {
    parts.push_back(part(layer, rank_));
  }
  return parts;
}

std::vector<Slice> NodeParts::written() const {
  std::vector<Slice> parts = shard();
  for (int layer = 0; layer < static_cast<int>(map_.layers().size()); ++layer) {
    for (int const owner : taken_) {
      parts.push_back(part(layer, owner));
    }
  }
  return parts;
}

std::vector<Slice> NodeParts::sent(int layer) const {
  std::vector<Slice> parts(static_cast<std::size_t>(map_.ranks()));
  for (int const taker : takers_) {
    parts[static_cast<std::size_t>(taker)] = part(layer, rank_);
  }
  return parts;
}

std::vector<Slice> NodeParts::received(int layer) const {
  std::vector<Slice> parts(static_cast<std::size_t>(map_.ranks()));
  for (int const owner : taken_) {
    parts[static_cast<std::size_t>(owner)] = part(layer, owner);
  }
  return parts;
}

}  // namespace offstage::parameters
