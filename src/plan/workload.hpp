#pragma once

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
  std::int64_t elements{};                    ///< the whole layer, padded
  std::int64_t begin{}, count{};              ///< the rank's part of it, in elements of its shard
  Bytes leaving{};  ///< activations that leave the device after forward and come back for backward
  /// Backward needs the parameters of the layer before it, too: what that makes is computed again.
  bool with_before = false;
};

/// A subgroup of the shard. Those that are resident on the device come last.
struct SubgroupWork {
  std::int64_t begin{}, elements{};
  bool resident = false;
};

/// Tensors that wait between the layers of a vertical schedule (model::VerticalPlan).
struct WaitingWork {
  double tensor{}, table{};  ///< bytes of each that leave the device; 0: they stay
  int slabs = 1, table_slabs = 1;
  bool ahead = true;  ///< what comes next is brought under the work of what is at hand
  bool tied = false;  ///< tables wait at all
};

/// What a rank has to do in a step.
struct Workload {
  std::vector<LayerWork>
      layers;  ///< in the shard's order; the gradient of the last one comes first
  std::vector<int> forward, backward;  ///< layers in the order of their use
  /// Layers whose activations leave together, with the last of them, and have a slab together.
  std::size_t layers_per_block = 1;
  std::vector<SubgroupWork> subgroups;
  std::int64_t rounds = 1;         ///< micro-batches of the rank, one after the other
  std::int64_t micro_batches = 1;  ///< of all ranks
  int ranks = 1;                   ///< that hold the layers' parts
  int nodes = 1;                   ///< that these ranks are on
  double state_bytes = 12.0;       ///< per element, on storage and on the link
  Bytes working_bytes = 2;     ///< per element of the working copy, and of a micro-batch's gradient
  Bytes gradient_bytes = 2;    ///< per element of the accumulated gradient
  Bytes extent_bytes = 0;      ///< per element of its extents; 0: the same
  std::int64_t sum_block = 0;  ///< micro-batches that are summed before sums are; 0: one level
  /// Micro-batches in a row that a rank runs, whose gradients it sums whole: their sums go to the ranks in the row's last round.
  std::int64_t row = 1;
  /// Micro-batches pass a layer together: the first layer is the embedding, the last the head.
  std::optional<WaitingWork> vertical{};

  /// Rounds whose gradients, or sums of them, go to the ranks.
  [[nodiscard]] std::int64_t exchanges() const { return ceil_div(rounds, row); }
  [[nodiscard]] Bytes exchanged_bytes() const { return row > 1 ? gradient_bytes : working_bytes; }
  [[nodiscard]] Bytes bytes_of_extents() const {
    return extent_bytes > 0 ? extent_bytes : gradient_bytes;
  }
};

/// Where the 16-bit parameters live.
enum class ParameterHome { device, host, storage, node };

/// How a run goes about it: the deciders' settings and the buffers that a memory plan gives.
struct Schedule {
  // Update
  double share{};  ///< of what is not resident, on the device
  Transfers transfers = Transfers::overlap;
  UpdateOrder order = UpdateOrder::alternate;
  bool overlap = false;  ///< updates begin under the last micro-batch's backward
  bool redone = false;   ///< and each is taken back and done again: its norm was above the limit
  bool goes_on = true;   ///< the update's transfers go on under the next forward
  bool stages = true;    ///< the CPU's new parameters cross the link, chunk by chunk
  std::int64_t chunk = std::int64_t{4} << 20U;  ///< elements that cross the link at a time
  int chunk_slots = 4;                          ///< of them on the device
  int staged_chunks = 3;                        ///< the CPU's new parameters on their way
  int workers = 2;                              ///< trips at a time
  std::int64_t held{};          ///< elements whose gradients the device has room for
  bool direct = false;          ///< ranks pass layers from device to device, not by host memory
  bool sums_on_device = false;  ///< gradients that leave are summed there, as far as it has room
  // State
  int buffers{};             ///< extents of the state in flight; 0: all of it is in memory
  std::int64_t cached{};     ///< extents that stay in host memory
  std::int64_t spares{};     ///< versions on trial that host memory has room for
  bool spare_slots = false;  ///< storage has room for second versions
  Evict evict = Evict::farthest;
  bool spread = true;  ///< what is in memory is updated between what is not (update_order)
  SplitPolicy split;
  PathSharer sharer;
  // Gradients
  int gradient_buffers{};  ///< 0: all stay in memory
  std::int64_t gradients_cached{};
  bool flush_fp32 = false;
  // Parameters
  ParameterHome home = ParameterHome::device;
  /// Layers on the device at a time, or gathered ones of several ranks; 0: all are there.
  int parameter_slots{};  ///< of ParameterHome::node where layers are used where they lie: as many as there are
  bool gathers_once = false;        ///< ranks' layers stay in them until the step's end
  std::vector<int> large_layers{};  ///< layers that have one slot together beside those
  int parameter_buffers{};          ///< extents of them in flight
  int parameters_ahead = 1;         ///< of those, read ahead of use
  // Activations
  int slabs = 2;  ///< blocks that share the device's memory in turn
  bool activations_on_storage = false;
  std::int64_t activations_cached{};  ///< blocks whose activations stay in host memory all the same
  int activation_writers = 1, activation_readers = 1;
};

}  // namespace offstage::plan
