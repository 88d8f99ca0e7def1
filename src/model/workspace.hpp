#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/device.hpp"
#include "model/block.hpp"
#include "model/dims.hpp"
#include "model/fates.hpp"
#include "model/head.hpp"

namespace offstage::model {

/// What a vertical schedule keeps beside one block's memory: of micro-batches that pass a layer
/// together.
struct VerticalDemand {
  int micro_batches = 1;  ///< whose tokens, targets and losses are there
  int tensors = 0;  ///< (B, T, C) each: blocks' inputs and gradients of them; 0: it is horizontal
  int tables = 0;  ///< tied gradients that are there at a time, beside the one that there is anyway
};

/// How much there is to keep beside the shapes of one block.
struct WorkspaceDemand {
  BlockRing ring;
  /// Of the largest layer, padded; the embedding not counted where its gradient has a place of its
  /// own.
  std::int64_t layer_elements{};
  std::int64_t tied_elements{};  ///< of a tied embedding, padded, whose gradient has one; else 0
  VerticalDemand vertical{};
};
[[nodiscard]] WorkspaceDemand workspace_demand(std::vector<state::LayerLayout> const& layers,
                                               bool tied_head, BlockRing ring,
                                               VerticalDemand const& vertical);

/// All device memory of a Transformer but its parameters.
/// Errors: UsageError of the device that names what there was no room for.
template <class T>
class Workspace {
 public:
  Workspace(Dims const& dims, WorkspaceDemand const& demand, device::Device& device);

  /// Copies the tables of RoPE to the device, if the family has any. Order: returns when done.
  void fill_rope_tables(state::ModelShape const& shape, device::Stream& stream);

  /// The largest buffer of those that nobody reads before it is written once backward has returned: all
  /// but the tables of RoPE.
  [[nodiscard]] std::span<std::byte> idle_memory() const;

  std::span<std::int32_t> tokens;  ///< (micro-batches, B, T)
  RopeTables<T> rope;
  BlockScratch<T> scratch;
  std::vector<BlockActivations<T>> blocks;  ///< those of a slab share memory
  /// Parts that blocks share: as many have memory as the ring has copies.
  std::vector<std::array<std::span<std::byte>, part_count>> slabs;
  HeadActivations<T> head;  ///< in memory of `scratch` beyond branch: it runs when no block does
  HeadRows head_rows;       ///< (micro-batches, B, T) each
  std::span<T> dx;  ///< (B, T, C) gradient of the residual stream; of a vertical schedule empty
  /// Of one layer each, padded: one is computed while the other leaves the device.
  std::array<std::span<T>, 2> gradients;
  std::span<T> tied_gradient;  ///< of the embedding, padded, from the head's backward to its own
  /// HeadGradient::sum. It lies in the memory of all these gradients, the one that the head's matrix
  /// goes to first, as nobody needs any other of them while the head runs. Gradients of a vertical
  /// schedule are on their way meanwhile: there it has memory of its own.
  std::span<Real<T>> head_sum;
  std::vector<std::span<T>> tensors;  ///< VerticalDemand::tensors
  std::vector<std::span<T>> tables;   ///< VerticalDemand::tables

 private:
  template <class LayOut>
  auto allocate(device::Buffer& memory, std::string const& purpose, LayOut&& lay_out);
  template <class LayOut>
  auto allocate(std::string const& purpose, LayOut&& lay_out) {
    return allocate(memory_.emplace_back(), purpose, std::forward<LayOut>(lay_out));
  }
  void allocate_slabs(BlockRing const& ring);
  void allocate_blocks(BlockRing const& ring);

  Dims dims_;
  device::Device& device_;
  device::Buffer rope_memory_;
  std::vector<device::Buffer> memory_;  ///< of everything else
};

}  // namespace offstage::model
