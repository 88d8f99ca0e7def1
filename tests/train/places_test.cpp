#include "train/report/places.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace offstage::train {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(JoinNames, WritesNumbersAtTheEndAsRanges) {
  EXPECT_EQ(join_names({"node3", "node1", "node2", "node7"}), "node[1-3,7]");
  EXPECT_EQ(join_names({"node008", "node009", "node010"}), "node[008-010]");
  EXPECT_EQ(join_names({"node9", "node10"}), "node9,node10") << "numbers of different widths";
  EXPECT_EQ(join_names({"n1.site", "n2.site"}), "n[1-2].site");
}

TEST(JoinNames, LeavesOtherNamesApart) {
  EXPECT_EQ(join_names({"login", "a5"}), "a5,login");
  EXPECT_EQ(join_names({"login"}), "login");
  EXPECT_EQ(join_names({"17"}), "17");
  EXPECT_EQ(join_names({".odd"}), ".odd");
  std::string const long_number = "n" + std::string(30, '9');
  EXPECT_EQ(join_names({long_number}), long_number);
  EXPECT_EQ(join_names({}), "");
}

std::vector<PlaceLine> on_nodes(int nodes, int ranks_each) {
  std::vector<PlaceLine> ranks;
  for (int node = 1; node <= nodes; ++node) {
    for (int rank = 0; rank < ranks_each; ++rank) {
      ranks.push_back({fmt::format("node{:02}", node), fmt::format("cores {}", rank)});
    }
  }
  return ranks;
}

TEST(DescribePlaces, OfANodeAloneHasALineForEachRank) {
  EXPECT_THAT(describe_places(on_nodes(1, 2)),
              ElementsAre("rank 0    node01  cores 0", "rank 1    node01  cores 1"));
  EXPECT_THAT(describe_places({}), IsEmpty());
}

TEST(DescribePlaces, OfNodesThatAreAlikeIsOneLine) {
  EXPECT_THAT(describe_places(on_nodes(64, 4)),
              ElementsAre("node[01-64]: 4 ranks each (0-255): cores 0; cores 1; cores 2; cores 3"));
  EXPECT_THAT(describe_places(on_nodes(2, 1)),
              ElementsAre("node[01-02]: 1 rank each (0-1): cores 0"));
}

TEST(DescribePlaces, TellsANodeThatIsUnlikeTheOthersApart) {
  auto ranks = on_nodes(4, 1);
  ranks[1].place = "cores 7";
  EXPECT_THAT(describe_places(ranks), ElementsAre("node[01,03-04]: 1 rank each (0,2-3): cores 0",
                                                  "rank 1    node02  cores 7"));
  ranks.push_back({"node03", "cores 9"});  // one rank more than the others
  EXPECT_THAT(describe_places(ranks),
              ElementsAre("node[01,04]: 1 rank each (0,3): cores 0", "rank 1    node02  cores 7",
                          "rank 2    node03  cores 0", "rank 4    node03  cores 9"));
}

}  // namespace
}  // namespace offstage::train
