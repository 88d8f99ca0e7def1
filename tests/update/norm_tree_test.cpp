#include "update/gradients/norm_tree.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/error.hpp"

namespace offstage::update {
namespace {

/// Numbers whose sum depends on the order.
double sum_of(std::int64_t chunk) {
  return std::ldexp(1.0 + 0.37 * static_cast<double>(chunk % 11), static_cast<int>(chunk % 40));
}

/// The tree by its definition: halves of a power of two, chunks beyond the last are 0.
double defined(std::int64_t first, std::int64_t width, std::int64_t chunks) {
  if (width == 1) {
    return first < chunks ? sum_of(first) : 0.0;
  }
  return defined(first, width / 2, chunks) + defined(first + width / 2, width / 2, chunks);
}

std::int64_t power_of_two(std::int64_t chunks) {
  std::int64_t width = 1;
  while (width < chunks) {
    width *= 2;
  }
  return width;
}

/// Chunks of `layers` layers, each dealt to the ranks in runs, and the ranks' trees joined two by
/// two.
double by_ranks(std::int64_t layers, std::int64_t in_layer, std::int64_t ranks) {
  std::vector<NormTree> trees(static_cast<std::size_t>(ranks));
  for (std::int64_t chunk = 0; chunk < layers * in_layer; ++chunk) {
    auto const rank = chunk % in_layer * ranks / in_layer;
    trees[static_cast<std::size_t>(rank)].add(chunk, sum_of(chunk));
  }
  for (std::size_t reach = 1; reach < trees.size(); reach *= 2) {
    for (std::size_t rank = 0; rank + reach < trees.size(); rank += 2 * reach) {
      trees[rank].join(trees[rank + reach].nodes());
    }
  }
  return trees[0].root();
}

TEST(NormTree, OfFiveChunksByHand) {
  NormTree tree;
  for (std::int64_t chunk = 0; chunk < 5; ++chunk) {
    tree.add(chunk, static_cast<double>(1 + chunk));
  }
  ASSERT_EQ(tree.nodes().size(), 2U);
  EXPECT_EQ(tree.nodes()[0].level, 2);
  EXPECT_EQ(tree.nodes()[0].sum, 10.0);
  EXPECT_EQ(tree.nodes()[1].level, 0);
  EXPECT_EQ(tree.nodes()[1].index, 4);
  EXPECT_EQ(tree.root(), 15.0);
}

TEST(NormTree, IsTheTreeOverTheIndexForAnyNumberOfChunks) {
  for (std::int64_t chunks = 1; chunks <= 70; ++chunks) {
    NormTree tree;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      tree.add(chunk, sum_of(chunk));
    }
    EXPECT_EQ(tree.root(), defined(0, power_of_two(chunks), chunks)) << chunks;
  }
}

TEST(NormTree, HasTheSameBitsForAnyNumberOfRanks) {
  for (std::int64_t const layers : {1, 3, 8}) {
    for (std::int64_t const in_layer : {1, 5, 33, 100}) {
      std::int64_t const chunks = layers * in_layer;
      double const expected = defined(0, power_of_two(chunks), chunks);
      for (std::int64_t const ranks : {1, 2, 3, 7, 32, 65}) {
        EXPECT_EQ(by_ranks(layers, in_layer, ranks), expected)
            << layers << " layers of " << in_layer << " chunks, " << ranks << " ranks";
      }
    }
  }
}

TEST(NormTree, ARankKeepsFewNodesOfManyChunks) {
  NormTree tree;
  for (std::int64_t chunk = 1001; chunk < 1'000'000; ++chunk) {
    tree.add(chunk, 1.0);
  }
  EXPECT_LE(tree.nodes().size(), 40U);
}

TEST(NormTree, IsNotFiniteWhereAChunkIsNot) {
  NormTree tree;
  tree.add(0, 1.0);
  tree.add(1, std::numeric_limits<double>::infinity());
  tree.add(2, 1.0);
  EXPECT_FALSE(std::isfinite(tree.root()));
}

TEST(NormTree, OfNothingIsZeroAndMissesNoChunk) {
  EXPECT_EQ(NormTree{}.root(), 0.0);
  NormTree tree;
  tree.add(0, 1.0);
  tree.add(2, 1.0);
  EXPECT_THROW((void)tree.root(), PreconditionError);
}

}  // namespace
}  // namespace offstage::update
