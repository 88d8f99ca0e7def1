#include "update/gradients/norm_tree.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.hpp"

namespace offstage::update {

void NormTree::append(NormNode node) {
  while (!nodes_.empty() && node.index % 2 == 1 && nodes_.back().level == node.level &&
         nodes_.back().index == node.index - 1) {
    node = {node.level + 1, node.index / 2, nodes_.back().sum + node.sum};
    nodes_.pop_back();
  }
  nodes_.push_back(node);
}

void NormTree::join(std::span<NormNode const> others) {
  std::vector<NormNode> all;
  all.reserve(nodes_.size() + others.size());
  std::ranges::merge(nodes_, others, std::back_inserter(all), {}, &NormNode::first_chunk,
                     &NormNode::first_chunk);
  nodes_.clear();
  for (NormNode const& node : all) {
    append(node);
  }
}

// Chunks from 0 on without a gap: each node's level is above the next one's, whose sibling on the
// right is all zeros.
double NormTree::root() const {
  std::int64_t next = 0;
  for (NormNode const& node : nodes_) {
    require(node.first_chunk() == next, "NormTree: a chunk is missing");
    next += std::int64_t{1} << node.level;
  }
  double sum = 0.0;
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) {
    sum = node->sum + sum;
  }
  return sum;
}

}  // namespace offstage::update
