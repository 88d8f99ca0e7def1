#pragma once

#include <cstdint>
#include <vector>

#include "base/chunk.hpp"
#include "state/shard.hpp"

namespace offstage::checkpoint {

/// The first format in which a block is two layers, as in state::layers_of. Before, it was one.
constexpr int format_of_two_layers = 5;

/// The layers whose chunks a checkpoint of this format holds.
[[nodiscard]] std::vector<state::LayerLayout> layers_of(state::ModelShape const& shape,
                                                        std::int64_t format);

/// Elements that are contiguous both in a layer of a checkpoint and in the piece that is read.
struct Section {
  int layer{};
  std::int64_t begin{};  ///< first element in the layer
  std::int64_t target{};
  std::int64_t elements{};
};

/// The places of a piece of a layer of `today` in the layers of `then`. Elements without a place
/// are padding. Both are of one model.
[[nodiscard]] std::vector<Section> sections_of(state::Piece const& piece,
                                               std::vector<state::LayerLayout> const& today,
                                               std::vector<state::LayerLayout> const& then);

}  // namespace offstage::checkpoint
