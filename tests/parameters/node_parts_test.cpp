#include "parameters/node_parts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "parameters/parameter_support.hpp"

namespace offstage::parameters {
namespace {

std::vector<int> of_nodes(std::vector<int> const& sizes) {
  std::vector<int> nodes;
  for (int const size : sizes) {
    nodes.insert(nodes.end(), static_cast<std::size_t>(size), static_cast<int>(nodes.size()));
  }
  return nodes;
}

TEST(NodeParts, AreTakenByTheRankInTheSamePlace) {
  state::ShardMap const map{layers_with({9 * 4096, 2 * 4096}), 4};
  NodeParts const two{map, of_nodes({2, 2}), 1, 2};
  EXPECT_EQ(two.nodes(), 2);
  EXPECT_EQ(two.takers(), std::vector{3});
  EXPECT_EQ(two.taken(), std::vector{3});
  NodeParts const alone{map, of_nodes({4}), 1, 2};
  EXPECT_TRUE(alone.takers().empty() && alone.taken().empty());
  NodeParts const large{map, of_nodes({3, 1}), 2, 2};
  EXPECT_EQ(large.takers(), std::vector{3});
  EXPECT_TRUE(large.taken().empty());
  EXPECT_EQ(NodeParts(map, of_nodes({3, 1}), 3, 2).taken(), (std::vector{0, 1, 2}));
  EXPECT_EQ(NodeParts(map, of_nodes({3, 1}), 3, 2).takers(), std::vector{0});
}

TEST(NodeParts, LieInWholeLayers) {
  // Nine chunks in parts of three, and two on the first two ranks.
  state::ShardMap const map{layers_with({9 * 4096, 2 * 4096}), 4};
  NodeParts const parts{map, of_nodes({2, 2}), 1, 2};
  Bytes const chunk = 4096 * 2;
  EXPECT_EQ(parts.bytes(), 11 * chunk);
  EXPECT_EQ(parts.layer(1).offset, 9 * chunk);
  EXPECT_EQ(parts.layer(1).size, 2 * chunk);
  EXPECT_EQ(parts.part(0, 1).offset, 3 * chunk);
  EXPECT_EQ(parts.part(1, 1).offset, 10 * chunk);
  EXPECT_EQ(parts.part(0, 3).size, 0);
  ASSERT_EQ(parts.shard().size(), 2U);
  EXPECT_EQ(parts.sent(0)[3].size, 3 * chunk);
  EXPECT_EQ(parts.sent(0)[2].size, 0);
  EXPECT_EQ(parts.received(1)[3].size, 0);
}

// Each part that a rank sends is taken by its receiver, and a node's ranks write every chunk once.
TEST(NodeParts, ReachEveryNodeOnce) {
  for (auto const& sizes :
       std::vector<std::vector<int>>{{1}, {4}, {2, 2}, {3, 1}, {1, 3}, {1, 2, 4}, {5, 1, 1}}) {
    auto const nodes = of_nodes(sizes);
    int const ranks = static_cast<int>(nodes.size());
    state::ShardMap const map{layers_with({29 * 4096, 10, 7 * 4096 - 3}), ranks};
    for (int layer = 0; layer < 3; ++layer) {
      for (int to = 0; to < ranks; ++to) {
        NodeParts const taker{map, nodes, to, 4};
        for (int from = 0; from < ranks; ++from) {
          NodeParts const owner{map, nodes, from, 4};
          auto const sent = owner.sent(layer)[static_cast<std::size_t>(to)];
          auto const received = taker.received(layer)[static_cast<std::size_t>(from)];
          EXPECT_EQ(sent.size, received.size);
          EXPECT_TRUE(sent.size == 0 || sent.offset == received.offset);
        }
      }
    }
    for (int const node : std::set<int>{nodes.begin(), nodes.end()}) {
      std::vector<Slice> written;
      Bytes all = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        if (nodes[static_cast<std::size_t>(rank)] == node) {
          for (Slice const& part : NodeParts{map, nodes, rank, 4}.written()) {
            written.push_back(part);
            all += part.size;
          }
        }
      }
      std::erase_if(written, [](Slice const& part) { return part.size == 0; });
      std::ranges::sort(written, {}, &Slice::offset);
      Bytes end = 0;
      for (Slice const& part : written) {
        EXPECT_EQ(part.offset, end);
        end = part.offset + part.size;
      }
      EXPECT_EQ(all, NodeParts(map, nodes, 0, 4).bytes());
    }
  }
}

}  // namespace
}  // namespace offstage::parameters
