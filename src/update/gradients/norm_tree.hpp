#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace offstage::update {

/// A node of the tree over the global chunk index: the sum over chunks [index << level, (index + 1)
/// << level).
struct NormNode {
  std::int64_t level{};
  std::int64_t index{};
  double sum{};
  [[nodiscard]] std::int64_t first_chunk() const { return index << level; }
};

/// Sums of squares of some chunks, as the largest whole subtrees of a binary tree over the global
/// chunk index. A node's sum is its left half's plus its right half's, and chunks beyond the last
/// are 0. So the root's bits depend on the chunks' sums and their indices alone, whoever adds which
/// of them in which order.
class NormTree {
 public:
  NormTree() = default;
  /// Nodes as `nodes()` gives them.
  explicit NormTree(std::vector<NormNode> nodes) : nodes_{std::move(nodes)} {}

  /// Adds a chunk behind all that were added.
  void add(std::int64_t chunk, double sum) { append({0, chunk, sum}); }
  /// Adds the chunks of another tree, none of which this one has.
  void join(std::span<NormNode const> others);
  /// Ascending; no two are halves of one node.
  [[nodiscard]] std::vector<NormNode> const& nodes() const noexcept { return nodes_; }
  /// The sum of all chunks. Errors: PreconditionError: a chunk before the last one is missing.
  [[nodiscard]] double root() const;

 private:
  /// Behind all others, and joins halves.
  void append(NormNode node);

  std::vector<NormNode> nodes_;
};

}  // namespace offstage::update
