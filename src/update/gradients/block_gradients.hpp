#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"
#include "update/gradients/accumulator.hpp"
#include "update/gradients/block_rounds.hpp"
#include "update/gradients/order.hpp"
#include "update/gradients/step_gradients.hpp"

namespace offstage::update {

/// Gradients of whole layers, summed on the device over the block of micro-batches that this rank
/// runs. When the ranks' blocks are over, their sums go to the owners as gradients of micro-batches
/// do otherwise, and are added in order of the block: the bits are those of SumBlocks.
/// Micro-batches are dealt as BlockRounds says.
///
/// Source:  ZeRO (Rajbhandari et al., 2020), stage 1: gradients are whole on each rank until they
///          are reduced.
/// T: type of the model's gradients. A: that of sums, T or FP32, which is what ranks exchange.
/// Memory:  device: device_bytes, beside that of GradientAccumulator<A>; host: the latter's.
/// Order:   additions follow the gradient in the model's stream. Before the first one to a place it
///          waits for the sum that still leaves from there.
template <class T, class A>
class BlockGradients final : public StepGradients<T> {
 public:
  /// The arguments are those of GradientAccumulator; `block` is a number of micro-batches.
  /// GradientSettings::blocks has one level, the order of the blocks.
  BlockGradients(state::ShardMap const& map, state::RankLink& link, device::Device& device,
                 device::Stream& stream, std::vector<state::Subgroup> const& subgroups,
                 GradientSettings settings, std::int64_t block);

  void set_held(HeldGradients* held) override { sums_of_blocks_.set_held(held); }
  void set_receiver(FinalGradients* receiver) noexcept override {
    sums_of_blocks_.set_receiver(receiver);
  }
  void begin_step() noexcept override { sums_of_blocks_.begin_step(); }
  /// Errors: PreconditionError: GradientSettings::layer_sums, whose steps have rounds in layers.
  void begin_round(int active, bool last) override;
  void begin_rounds_in_layers(int micro_batches) override;
  std::shared_ptr<device::Event> add(int layer, std::span<T const> gradient) override;
  void end_round() override;
  void abandon() noexcept override { sums_of_blocks_.abandon(); }
  [[nodiscard]] double norm() const override { return sums_of_blocks_.norm(); }
  [[nodiscard]] GradientLease fetch(state::Subgroup const& subgroup) override {
    return sums_of_blocks_.fetch(subgroup);
  }
  void begin_update() override { sums_of_blocks_.begin_update(); }

  /// Device memory of the sums: all layers, or where rounds come in layers two of the model's
  /// blocks.
  [[nodiscard]] static Bytes device_bytes(state::ShardMap const& map, bool rounds_in_layers);

 private:
  /// Sums of one of the model's blocks leave while those of the next are made.
  static constexpr int places_of_a_block = 2;

  [[nodiscard]] BlockRounds::Round round() const;
  /// Place of sums of the model's block at hand.
  [[nodiscard]] std::size_t place() const {
    return rounds_in_layers_ ? static_cast<std::size_t>(sent_ % places_of_a_block) : 0;
  }
  /// Sum of a layer of this rank's block.
  [[nodiscard]] std::span<A> sum(int layer) const;

  state::ShardMap const& map_;
  int rank_;
  device::Stream& stream_;
  std::int64_t block_;
  bool rounds_in_layers_;
  std::vector<std::int64_t> offsets_;  ///< sums' places by layer, in elements
  device::Buffer sums_;
  std::int64_t turn_elements_ = 0;  ///< size of each of the two places of sums of a model's block
  std::int64_t sent_ = 0;           ///< sums of a model's block that the owners have got
  /// Points behind which the sums of each place have left it, and the place of the last sum that
  /// was handed on.
  std::array<std::shared_ptr<device::Event>, places_of_a_block> left_;
  std::size_t handed_ = 0;
  BlockRounds rounds_;       ///< rounds of a pass of rounds in layers
  BlockRounds::Round at_;    ///< the round at hand else
  std::int64_t within_ = 0;  ///< rounds of its blocks before it
  GradientOrder order_;
  /// Point behind which the gradient before is not used any more.
  std::shared_ptr<device::Event> added_;
  GradientAccumulator<A> sums_of_blocks_;
};

/// BlockGradients with sums of FP32 or T, as `settings` say.
template <class T>
[[nodiscard]] std::unique_ptr<StepGradients<T>> make_block_gradients(
    state::ShardMap const& map, state::RankLink& link, device::Device& device,
    device::Stream& stream, std::vector<state::Subgroup> const& subgroups,
    GradientSettings settings, std::int64_t block);

}  // namespace offstage::update
