#pragma once

#include <cstdint>
#include <vector>

#include "base/chunk.hpp"
#include "state/shard.hpp"

namespace offstage::checkpoint {

/// From this format on a block is two layers, as state::layers_of has them. Before, it was one.
constexpr int format_of_two_layers = 5;

/// Layers whose chunks a checkpoint of this format holds.
[[nodiscard]] std::vector<state::LayerLayout> layers_of(state::ModelShape const& shape,
                                                        std::int64_t format);

/// Elements that are contiguous in a layer of a checkpoint and in what is read.
struct Section {
  int layer{};
  std::int64_t begin{};  ///< of the first one in the layer
  std::int64_t target{};
  std::int64_t elements{};
};

/// Where a piece of a layer of `today` is in the layers `then`; what is left out of it is padding.
/// Both are of one model.
[[nodiscard]] std::vector<Section> sections_of(state::Piece const& piece,
                                               std::vector<state::LayerLayout> const& today,
                                               std::vector<state::LayerLayout> const& then);

}  // namespace offstage::checkpoint
