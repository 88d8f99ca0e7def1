#include "update/gradients/block_gradients.hpp"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "base/watch.hpp"
#include "kernels/optimizer/gradient.hpp"

namespace offstage::update {
namespace {

/// Where a layer's sum begins: behind the layers before it, of all or of its block of the model.
std::vector<std::int64_t> offsets(state::ShardMap const& map, bool rounds_in_layers) {
  auto const& layers = map.layers();
  std::vector<std::int64_t> all;
  std::int64_t next = 0;
  for (int layer = 0; layer < static_cast<int>(layers.size()); ++layer) {
    if (rounds_in_layers && GradientOrder::first_of_block(layers, layer) == layer) {
      next = 0;
    }
    all.push_back(next);
    next += layers[static_cast<std::size_t>(layer)].padded_elements();
  }
  return all;
}

/// Elements behind the last layer's sum, or the last one's of the largest block.
std::int64_t elements(state::ShardMap const& map, bool rounds_in_layers) {
  auto const begins = offsets(map, rounds_in_layers);
  std::int64_t most = 0;
  for (std::size_t layer = 0; layer < begins.size(); ++layer) {
    most = std::max(most, begins[layer] + map.layers()[layer].padded_elements());
  }
  return most;
}

}  // namespace

template <class T, class A>
Bytes BlockGradients<T, A>::device_bytes(state::ShardMap const& map, bool rounds_in_layers) {
  return (rounds_in_layers ? places_of_a_block : 1) * elements(map, rounds_in_layers) *
         static_cast<Bytes>(sizeof(A));
}

template <class T, class A>
BlockGradients<T, A>::BlockGradients(state::ShardMap const& map, state::RankLink& link,
                                     device::Device& device, device::Stream& stream,
                                     std::vector<state::Subgroup> const& subgroups,
                                     GradientSettings settings, std::int64_t block)
    : map_{map},
      rank_{link.rank()},
      stream_{stream},
      block_{block},
      rounds_in_layers_{settings.layer_sums},
      offsets_{offsets(map, rounds_in_layers_)},
      sums_{device.allocate(device_bytes(map, rounds_in_layers_),
                            "whole gradients of a block of micro-batches "
                            "(parameters.sharding=zero1)")},
      turn_elements_{rounds_in_layers_ ? elements(map, true) : 0},
      sums_of_blocks_{map, link, device, stream, subgroups, std::move(settings)} {
  require(block > 1, "BlockGradients: a block is summed");
}

template <class T, class A>
std::span<A> BlockGradients<T, A>::sum(int layer) const {
  auto const index = static_cast<std::size_t>(layer);
  auto const begins = static_cast<std::int64_t>(place()) * turn_elements_;
  return sums_.template as<A>().subspan(
      static_cast<std::size_t>(begins + offsets_[index]),
      static_cast<std::size_t>(map_.layers()[index].padded_elements()));
}

template <class T, class A>
void BlockGradients<T, A>::begin_round(int active, bool last) {
  require(order_.is_over(), "BlockGradients: end_round comes first");
  require(!rounds_in_layers_, "BlockGradients: sums of all layers have no room");
  int const blocks = within_ == 0 ? active : at_.blocks;
  at_ = {.active = active,
         .blocks = blocks,
         .begins = within_ == 0,
         .ends = last || within_ + 1 == block_};
  order_ = {map_.layers(), 1};
  if (at_.ends) {
    sums_of_blocks_.begin_round(blocks, last);
  }
}

template <class T, class A>
void BlockGradients<T, A>::begin_rounds_in_layers(int micro_batches) {
  require(order_.is_over(), "BlockGradients: end_round comes first");
  rounds_ = {micro_batches, map_.ranks(), block_};
  order_ = {map_.layers(), static_cast<int>(rounds_.count())};
  sums_of_blocks_.begin_rounds_in_layers(static_cast<int>(rounds_.blocks()));
}

template <class T, class A>
BlockRounds::Round BlockGradients<T, A>::round() const {
  return rounds_in_layers_ ? rounds_.round(order_.round()) : at_;
}

template <class T, class A>
std::shared_ptr<device::Event> BlockGradients<T, A>::add(int layer, std::span<T const> gradient) {
  Waiting const waiting{"the gradient of layer", layer};
  require(!order_.is_over() && layer == order_.layer(),
          "BlockGradients: after begin_round every layer comes once, the last first");
  BlockRounds::Round const now = round();
  require(gradient.empty() == (rank_ >= now.active),
          "BlockGradients: an active rank brings a gradient, an idle one none");
  auto before = std::exchange(added_, nullptr);
  if (auto const left = now.begins ? std::exchange(left_[place()], nullptr) : nullptr) {
    state::queue_behind(stream_, *left);
  }
  if (!gradient.empty()) {
    kernels::accumulate<A, T>(stream_, {sum(layer), gradient, now.begins});
    added_ = stream_.record();
  }
  if (now.ends) {
    auto const whole = rank_ < now.blocks ? sum(layer) : std::span<A>{};
    left_[handed_] = sums_of_blocks_.add(layer, whole);  // it tells of the sum before
    handed_ = place();
    if (rounds_in_layers_ && GradientOrder::first_of_block(map_.layers(), layer) == layer) {
      ++sent_;
    }
  }
  order_.next();
  if (!order_.is_over()) {
    return before;
  }
  stream_.synchronize();
  added_ = nullptr;
  left_ = {};
  return nullptr;
}

template <class T, class A>
void BlockGradients<T, A>::end_round() {
  require(order_.is_over(), "BlockGradients: every layer comes in every round");
  bool const ends = rounds_in_layers_ || at_.ends;
  within_ = ends ? 0 : within_ + 1;
  if (ends) {
    sums_of_blocks_.end_round();
  }
}

template <class T>
std::unique_ptr<StepGradients<T>> make_block_gradients(
    state::ShardMap const& map, state::RankLink& link, device::Device& device,
    device::Stream& stream, std::vector<state::Subgroup> const& subgroups,
    GradientSettings settings, std::int64_t block) {
  if (settings.accumulate_fp32) {
    return std::make_unique<BlockGradients<T, float>>(map, link, device, stream, subgroups,
                                                      std::move(settings), block);
  }
  return std::make_unique<BlockGradients<T, T>>(map, link, device, stream, subgroups,
                                                std::move(settings), block);
}

template class BlockGradients<float, float>;
template class BlockGradients<bfloat16, float>;
template class BlockGradients<bfloat16, bfloat16>;
template class BlockGradients<float16, float>;
template class BlockGradients<float16, float16>;

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, make_block_gradients)

}  // namespace offstage::update
