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
#include "model/gradient_buffers.hpp"
#include "model/head.hpp"

namespace offstage::model {

/// Memory that a vertical schedule keeps beside one block's, for micro-batches that pass a layer
/// together.
struct VerticalDemand {
  int micro_batches = 1;  ///< micro-batches whose tokens, targets and losses are there
  /// (B, T, C) each: blocks' inputs and their gradients; 0: the schedule is horizontal.
  int tensors = 0;
  int tables = 0;  ///< tied gradients that are there at a time, beside the one that is always there
};

/// Sizes of the memory beside the shapes of one block.
struct WorkspaceDemand {
  BlockRing ring;
  /// Elements of the largest layer, padded, whose gradient has no place of its own.
  std::int64_t layer_elements{};
  /// Elements of an attention layer, padded, if its gradient has a buffer of its own; else 0.
  std::int64_t attention_elements{};
  /// Elements of a tied embedding, padded, whose gradient has a place of its own; else 0.
  std::int64_t tied_elements{};
  VerticalDemand vertical{};
};
[[nodiscard]] WorkspaceDemand workspace_demand(std::vector<state::LayerLayout> const& layers,
                                               bool tied_head, bool attention_buffer,
                                               BlockRing ring, VerticalDemand const& vertical);

/// Where the documents of micro-batches lie, (micro-batches, B, T) each; empty unless they are
/// apart.
struct DocumentRows {
  std::span<std::int32_t> begins, ends;  ///< kernels::AttentionDocuments
  std::span<std::int32_t> position_of;   ///< position in its document; empty without learned ones
};

/// All device memory of a Transformer but its parameters.
/// Errors: UsageError of the device, which names the buffer for which there was no room.
template <class T>
class Workspace {
 public:
  Workspace(Dims const& dims, WorkspaceDemand const& demand, device::Device& device);

  /// Copies the tables of RoPE to the device, if the family has any. Order: returns when done.
  void fill_rope_tables(state::ModelShape const& shape, device::Stream& stream);

  /// The largest buffer that is written before it is read, once backward has returned. That holds
  /// for all but the tables of RoPE. `tensors` and `tables` are left out.
  [[nodiscard]] std::span<std::byte> idle_memory() const;

  std::span<std::int32_t> tokens;  ///< (micro-batches, B, T)
  DocumentRows documents;
  RopeTables<T> rope;
  BlockScratch<T> scratch;
  std::vector<BlockActivations<T>> blocks;  ///< blocks of a slab share memory
  /// Memory of parts that blocks share, one for each copy of the ring.
  std::vector<std::array<std::span<std::byte>, part_count>> slabs;
  /// In memory of `scratch` beyond branch, as no block runs while the head does.
  HeadActivations<T> head;
  HeadRows head_rows;  ///< (micro-batches, B, T) each
  std::span<T> dx;     ///< (B, T, C) gradient of the residual stream; empty in a vertical schedule
  GradientMemory<T> gradients;
  /// The embedding's gradient, padded, from the head's backward to its own.
  std::span<T> tied_gradient;
  /// HeadGradient::sum. It lies in the memory of all these gradients, and begins with the gradient
  /// of the head's matrix. Nobody needs the others while the head runs. In a vertical schedule
  /// other heads' gradients are on their way meanwhile, so it begins with attention's.
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
  device::Buffer rope_memory_, tensor_memory_, table_memory_;
  std::vector<device::Buffer> memory_;  ///< buffers of everything else
};

}  // namespace offstage::model
