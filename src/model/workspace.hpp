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
  int tensors = 0;        ///< (B, T, C) each: blocks' inputs and gradients of them
  int tables = 0;  ///< tied gradients that are there at a time, beside the one that there is anyway
};

/// How much there is to keep beside the shapes of one block.
struct WorkspaceDemand {
  BlockRing ring;
  std::int64_t layer_elements{};  ///< of the largest layer, padded
  std::int64_t
      tied_elements{};  ///< of the embedding, padded, if it needs a gradient of its own; else 0
  VerticalDemand vertical{};
};

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
  std::span<T> dx;          ///< (B, T, C) gradient of the residual stream
  /// Of one layer each, padded: one is computed while the other leaves the device.
  std::array<std::span<T>, 2> gradients;
  std::span<T> tied_gradient;  ///< of the embedding, padded, from the head's backward to its own
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
