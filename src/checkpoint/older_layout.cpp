#include "checkpoint/older_layout.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace offstage::checkpoint {
namespace {

/// Adds the tensors of another layer of the block: decayed tensors first, then the others, each in
/// their order.
void join(state::LayerLayout& block, state::LayerLayout layer) {
  std::ranges::move(layer.tensors, std::back_inserter(block.tensors));
  std::ranges::sort(block.tensors, {}, [](state::TensorLayout const& tensor) {
    return std::pair{!tensor.decayed, tensor.index};
  });
  block.decayed_elements += layer.decayed_elements;
  block.elements = 0;
  for (state::TensorLayout& tensor : block.tensors) {
    tensor.offset = block.elements;
    block.elements += tensor.elements();
  }
}

bool same_block(state::LayerLayout const& a, state::LayerLayout const& b) {
  return a.block >= 0 && a.block == b.block;
}

}  // namespace

std::vector<state::LayerLayout> layers_of(state::ModelShape const& shape, std::int64_t format) {
  auto layers = state::layers_of(shape);
  if (format >= format_of_two_layers) {
    return layers;
  }
  std::vector<state::LayerLayout> joined;
  for (state::LayerLayout& layer : layers) {
    if (!joined.empty() && same_block(joined.back(), layer)) {
      join(joined.back(), std::move(layer));
    } else {
      joined.push_back(std::move(layer));
    }
  }
  return joined;
}

std::vector<Section> sections_of(state::Piece const& piece,
                                 std::vector<state::LayerLayout> const& today,
                                 std::vector<state::LayerLayout> const& then) {
  std::int64_t const begin = piece.chunks.first * chunk_elements;
  std::int64_t const end = begin + piece.chunks.count * chunk_elements;
  auto const layer = static_cast<std::size_t>(piece.layer);
  if (today.size() == then.size()) {
    return {{piece.layer, begin, piece.offset, end - begin}};
  }
  std::size_t number = 0;  // blocks are joined, so each earlier layer counts once for its block
  for (std::size_t i = 1; i <= layer; ++i) {
    number += same_block(today[i - 1], today[i]) ? 0 : 1;
  }
  std::vector<Section> sections;
  for (state::TensorLayout const& tensor : today[layer].tensors) {
    std::int64_t const from = std::max(begin, tensor.offset);
    std::int64_t const count = std::min(end, tensor.offset + tensor.elements()) - from;
    if (count > 0) {
      auto const there =
          std::ranges::find(then[number].tensors, tensor.index, &state::TensorLayout::index);
      sections.push_back({.layer = static_cast<int>(number),
                          .begin = there->offset + from - tensor.offset,
                          .target = piece.offset + from - begin,
                          .elements = count});
    }
  }
  return sections;
}

}  // namespace offstage::checkpoint
