#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/units.hpp"
#include "plan/extent_cache.hpp"
#include "plan/order.hpp"
#include "plan/share.hpp"
#include "plan/split.hpp"

namespace offstage::plan {

/// One layer in one micro-batch.
struct LayerWork {
  double forward{}, backward{}, recompute{};  ///< floating-point operations
  std::int64_t elements{};                    ///< elements of the whole layer, padded
  std::int64_t begin{}, count{};              ///< the rank's part of it, in elements of its shard
  Bytes leaving{};  ///< activations that leave the device after forward and come back for backward
  /// Backward needs the parameters of the layer before, too, because that layer's result is
  /// computed again.
  bool with_before = false;
};

/// A subgroup of the shard. Those that are resident on the device come last.
struct SubgroupWork {
  std::int64_t begin{}, elements{};
  bool resident = false;
};

/// Tensors that wait between the layers of a vertical schedule (model::VerticalPlan).
struct WaitingWork {
  double tensor{}, table{};  ///< bytes of each that leave the device; 0: it stays
  double table_piece{};      ///< bytes of the pieces in which a table leaves
  int slabs = 1, table_slabs = 1;
  int staying = 0;  ///< tensors, the last ones, that have slabs of their own although others leave
  bool ahead = true;  ///< the next tensors are brought while the present ones are worked on
  bool tied = false;  ///< the table is tied, so that tables wait too

  /// Pieces of a table that leave.
  [[nodiscard]] int pieces() const {
    return tied && table > 0.0 ? static_cast<int>(std::ceil(table / table_piece)) : 0;
  }
};

/// The work of a rank in a step.
struct Workload {
  /// In the shard's order; the gradient of the last one comes first.
  std::vector<LayerWork> layers;
  std::vector<int> forward, backward;  ///< layers in the order of their use
  /// Layers whose activations leave together, with the last of them, and have a slab together.
  std::size_t layers_per_block = 1;
  /// The gradient of a block's lowest layer, attention, has a buffer of its own.
  bool attention_buffer = false;
  std::vector<SubgroupWork> subgroups;
  std::int64_t rounds = 1;         ///< micro-batches of the rank, one after the other
  std::int64_t micro_batches = 1;  ///< micro-batches of all ranks
  int ranks = 1;                   ///< ranks that hold the layers' parts
  int nodes = 1;                   ///< nodes that these ranks are on
  double state_bytes = 12.0;       ///< per element, on storage and on the link
  /// The state lacks the halves of parameters that the working copy has (optimizer's split).
  bool splits_parameters = false;
  Bytes working_bytes = 2;   ///< per element of the working copy, and of a micro-batch's gradient
  Bytes gradient_bytes = 2;  ///< per element of the accumulated gradient
  Bytes extent_bytes = 0;    ///< per element of the gradient's extents; 0: the same
  /// Micro-batches in a block of sums (update::SumBlocks); 0: one level.
  std::int64_t sum_block = 0;
  /// Micro-batches in a row that a rank runs and whose gradients it sums whole. Their sums go to
  /// the ranks in the row's last round.
  std::int64_t row = 1;
  /// Micro-batches pass a layer together: the first layer is the embedding, the last the head.
  std::optional<WaitingWork> vertical{};

  /// Elements of the rank's shard.
  [[nodiscard]] std::int64_t elements() const {
    return subgroups.empty() ? 0 : subgroups.back().begin + subgroups.back().elements;
  }
  /// Blocks of a vertical schedule, between the embedding and the head.
  [[nodiscard]] std::int64_t blocks() const {
    return static_cast<std::int64_t>((layers.size() - 2) / layers_per_block);
  }
  /// Rounds whose gradients, or sums of them, go to the ranks.
  [[nodiscard]] std::int64_t exchanges() const { return ceil_div(rounds, row); }
  [[nodiscard]] Bytes exchanged_bytes() const { return row > 1 ? gradient_bytes : working_bytes; }
  [[nodiscard]] Bytes bytes_of_extents() const {
    return extent_bytes > 0 ? extent_bytes : gradient_bytes;
  }
};

/// parameters.home: the place of the 16-bit working copy of a rank's shard.
enum class ParameterHome {
  device,   ///< in device memory; layers are used in place, or gathered from the ranks
  host,     ///< in host memory, streamed to the device layer by layer
  storage,  ///< on the storage paths, streamed to the device through a few extents in host memory
  node,     ///< all ranks' shards, in host memory that the ranks of a node share
};

/// A run's way of doing the work: the deciders' settings and the buffers that a memory plan gives.
struct Schedule {
  // Update:
  double share{};  ///< part of the elements that are not resident which the device updates
  Transfers transfers = Transfers::overlap;
  UpdateOrder order = UpdateOrder::alternate;
  bool overlap = false;  ///< updates begin under the last micro-batch's backward
  /// Each update is reverted and made again, because its norm was above the limit.
  bool redone = false;
  bool under_next_forward = true;  ///< the update's transfers go on under the next forward
  bool stages = true;              ///< the CPU's new parameters cross the link, chunk by chunk
  std::int64_t chunk = std::int64_t{4} << 20U;  ///< elements that cross the link at a time
  int chunk_buffers = 4;                        ///< places for chunks on the device
  int staged_chunks = 3;                        ///< chunks of the CPU's new parameters on their way
  int workers = 2;                              ///< trips at a time
  std::int64_t held{};  ///< elements whose gradients the device has room for
  bool direct = false;  ///< ranks pass layers from device to device, not through host memory
  /// Gradients that leave are summed on the device, as far as it has room.
  bool sums_on_device = false;
  /// Elements where blocks of layers begin whose sums have that room in turn (places_in_turn), in a
  /// vertical schedule; empty: sums have it for a whole step.
  std::vector<std::int64_t> sum_blocks{};
  /// Elements of `held` that gradients which stay leave to those sums.
  std::int64_t reserved_in_turn{};
  // State
  int buffers{};             ///< extents of the state in flight; 0: all are in memory
  std::int64_t cached{};     ///< extents that stay in host memory
  std::int64_t spares{};     ///< versions on trial that host memory has room for
  bool spare_slots = false;  ///< storage has room for second versions
  Evict evict = Evict::farthest;
  SplitPolicy split;
  PathSharer sharer;
  // Gradients
  int gradient_buffers{};  ///< extents of gradients in flight; 0: all are in memory
  std::int64_t gradients_cached{};
  bool flush_fp32 = false;
  // Parameters
  ParameterHome home = ParameterHome::device;
  /// Layers on the device at a time; with several ranks, gathered ones. 0: all are there. If a
  /// node's layers are used in place: all layers.
  int layer_slots{};
  bool gathers_once = false;        ///< gathered layers stay in their slots until the step's end
  std::vector<int> large_layers{};  ///< layers that have one slot together beside the usual ones
  int parameter_buffers{};          ///< extents of parameters in flight
  int parameters_ahead = 1;         ///< extents read ahead of their use
  // Activations
  int slabs = 2;  ///< blocks that share the device's memory in turn
  bool activations_on_storage = false;
  /// Blocks whose activations stay in host memory although others' may leave it.
  std::int64_t activations_cached{};
  int activation_writers = 1, activation_readers = 1;
};

}  // namespace offstage::plan
