#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "state/shard.hpp"

// Gradients of a step's micro-batches, and what must come out of them.
namespace offstage::update {

inline constexpr int layers = 5;
inline constexpr int micro_batches =
    5;  // not a multiple of 2 to 4 ranks: the last round has idle ranks

inline std::vector<state::LayerLayout> layout() {
  std::vector<state::LayerLayout> result;
  for (std::int64_t elements : {5 * 4096, 10, 7 * 4096 - 3, 4096, 3 * 4096}) {
    result.emplace_back().elements = elements;
  }
  return result;
}

template <class T>
std::vector<T> random_layer(int g, int layer) {
  auto const layers_now = layout();
  state::LayerLayout const& shape = layers_now[static_cast<std::size_t>(layer)];
  std::minstd_rand random(static_cast<unsigned>(g * 10 + layer + 1));
  std::uniform_real_distribution<float> values_of{-1.0F, 1.0F};
  std::vector<T> values(static_cast<std::size_t>(shape.padded_elements()));
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape.elements); ++i) {
    values[i] = store<T>(values_of(random));
  }
  return values;
}

/// The gradient of micro-batch g, the same on whatever rank computes it; padding is zero.
template <class T>
std::vector<T> const& gradient_of(int g, int layer) {
  static auto const all = [] {
    std::vector<std::vector<T>> gradients;
    for (int i = 0; i < micro_batches * layers; ++i) {
      gradients.push_back(random_layer<T>(i / layers, i % layers));
    }
    return gradients;
  }();
  return all[static_cast<std::size_t>(g * layers + layer)];
}

/// The sum of micro-batches [first, end), element by element, in order of g.
template <class T, class A>
std::vector<A> sum_in_order(int layer, int first, int end) {
  std::vector<A> sum;
  for (int g = first; g < end; ++g) {
    auto const& gradient = gradient_of<T>(g, layer);
    sum.resize(gradient.size());
    for (std::size_t k = 0; k < gradient.size(); ++k) {
      sum[k] = store<A>(g == first ? load(gradient[k]) : load(sum[k]) + load(gradient[k]));
    }
  }
  return sum;
}

/// The sum that must come out: blocks of `block` micro-batches in order, and then blocks in order;
/// 0: one block.
template <class T, class A>
std::vector<A> sum_in_blocks(int layer, int block) {
  int const step = block > 0 ? block : micro_batches;
  auto total = sum_in_order<T, A>(layer, 0, std::min(step, micro_batches));
  for (int first = step; first < micro_batches; first += step) {
    auto const next = sum_in_order<T, A>(layer, first, std::min(first + step, micro_batches));
    for (std::size_t k = 0; k < total.size(); ++k) {
      total[k] = store<A>(load(total[k]) + load(next[k]));
    }
  }
  return total;
}

template <class T, class A>
std::vector<A> const& expected_sum(int layer, int block = 0) {
  static std::map<std::pair<int, int>, std::vector<A>> known;
  auto const [found, fresh] = known.try_emplace({layer, block});
  if (fresh) {
    found->second = sum_in_blocks<T, A>(layer, block);
  }
  return found->second;
}

/// By the definition: halves of a power of two, 0 beyond the last chunk.
inline double tree_sum(std::span<double const> chunks, std::size_t first, std::size_t width) {
  if (width == 1) {
    return first < chunks.size() ? chunks[first] : 0.0;
  }
  return tree_sum(chunks, first, width / 2) + tree_sum(chunks, first + width / 2, width / 2);
}

/// Of all layers, chunk sums in a tree over (layer, chunk): lane i mod 16, lanes in order.
template <class T, class A>
double norm_by_hand(int block) {
  std::vector<double> sums;
  for (int layer = 0; layer < layers; ++layer) {
    auto const& all = expected_sum<T, A>(layer, block);
    for (std::size_t chunk = 0; chunk < all.size(); chunk += chunk_elements) {
      std::array<double, 16> lanes{};
      for (std::size_t i = 0; i < chunk_elements; ++i) {
        double const x = static_cast<double>(load(all[chunk + i]));
        lanes[i % 16] += x * x;
      }
      double chunk_sum = 0.0;
      for (double const lane : lanes) {
        chunk_sum += lane;
      }
      sums.push_back(chunk_sum);
    }
  }
  return std::sqrt(tree_sum(sums, 0, std::bit_ceil(sums.size())));
}

template <class T, class A>
double expected_norm(int block = 0) {
  static std::map<int, double> known;
  auto const [found, fresh] = known.try_emplace(block);
  if (fresh) {
    found->second = norm_by_hand<T, A>(block);
  }
  return found->second;
}

}  // namespace offstage::update
