#pragma once

#include <cstddef>
#include <span>

#include "state/model_shape.hpp"

namespace offstage::update {

/// Order in which the layers' gradients of a pass come: the last layer first, each in all rounds
/// before the next one does. Layers of a block come one after the other in each round, for a
/// vertical schedule holds them together.
class GradientOrder {
 public:
  /// Is over.
  GradientOrder() = default;
  /// `all` layers outlive it.
  GradientOrder(std::span<state::LayerLayout const> all, int rounds)
      : layers_{all}, rounds_{rounds}, layer_{static_cast<int>(all.size()) - 1} {}

  [[nodiscard]] bool is_over() const noexcept { return layer_ < 0; }
  /// The layer that comes next, and its round.
  [[nodiscard]] int layer() const noexcept { return layer_; }
  [[nodiscard]] int round() const noexcept { return round_; }
  void next() noexcept {
    if (joins_next(layers_, layer_ - 1)) {
      --layer_;
    } else if (round_ + 1 < rounds_) {
      ++round_;
      while (joins_next(layers_, layer_)) {
        ++layer_;
      }
    } else {
      round_ = 0;
      --layer_;
    }
  }

  /// Lowest layer of the same block; of a layer that is of none, itself.
  [[nodiscard]] static int first_of_block(std::span<state::LayerLayout const> all,
                                          int layer) noexcept {
    while (joins_next(all, layer - 1)) {
      --layer;
    }
    return layer;
  }

 private:
  /// Whether the next layer is of the same block.
  [[nodiscard]] static bool joins_next(std::span<state::LayerLayout const> all,
                                       int layer) noexcept {
    auto const i = static_cast<std::size_t>(layer);
    return layer >= 0 && i + 1 < all.size() && all[i].block >= 0 &&
           all[i].block == all[i + 1].block;
  }

  std::span<state::LayerLayout const> layers_;
  int rounds_ = 0;
  int layer_ = -1;
  int round_ = 0;
};

}  // namespace offstage::update
