#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/pacer.hpp"
#include "device/memory_counter.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/trace/trace.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"
#include "update/gradients/flusher.hpp"
#include "update/gradients/held_gradients.hpp"
#include "update/gradients/lease.hpp"
#include "update/gradients/order.hpp"
#include "update/gradients/sum_blocks.hpp"

namespace offstage::update {

/// Gradients of a layer that come at a time: one of each active rank, in rank order.
struct GradientRound {
  int active = 0;                ///< ranks
  std::int64_t micro_batch = 0;  ///< rank 0's, by its index in the step
  bool last = false;             ///< last round of the step: sums are final

  /// Addition of the gradient of rank `source`.
  [[nodiscard]] Addition addition(SumBlocks const& blocks, int source) const {
    return blocks.addition(micro_batch + source, last && source + 1 == active);
  }
};

/// Pass over all layers, the last first, of some micro-batches of a step. Every layer comes in as
/// many rounds as those micro-batches take, ascending (GradientOrder).
struct GradientPass {
  std::int64_t micro_batch = 0;  ///< the first one, by its index in the step
  int micro_batches = 0;
  int ranks = 1;
  bool last = false;

  /// Sums of the step begin.
  [[nodiscard]] bool first() const { return micro_batch == 0; }
  [[nodiscard]] int rounds() const { return (micro_batches + ranks - 1) / ranks; }
  [[nodiscard]] GradientRound round(int number) const {
    return {.active = std::min(ranks, micro_batches - number * ranks),
            .micro_batch = micro_batch + static_cast<std::int64_t>(number) * ranks,
            .last = last && number + 1 == rounds()};
  }
};

/// Places of the accumulated gradients.
struct GradientSettings {
  bool accumulate_fp32 = true;  ///< else the sum rounds to T
  SumBlocks blocks{};           ///< order of additions
  /// Holds the accumulated gradient, key = Subgroup::index, extent_planes() times 4 or sizeof(T)
  /// bytes an element, the totals first: in host memory what fits there, the rest as spilled
  /// extents. Its bytes live until the step has committed.
  std::unique_ptr<tiers::Tiers> accumulated;
  /// update.gradients=flush-fp32, the ZeRO-Infinity baseline: the last round converts every
  /// subgroup's gradient to FP32 and writes it here, and the update reads it from here. Null:
  /// conversion is delayed until the update (MLP section 3.2).
  std::unique_ptr<tiers::Tiers> flushed;
  trace::Trace* trace{};            ///< trace of gradients that leave the device; null: none
  device::MemoryCounter* memory{};  ///< told of what it takes; null: nobody
  /// Allows a pass of several rounds. Between rounds of a block, or of a layer that belongs to
  /// none, the sums lie in memory of their own.
  bool layer_sums{};
  double host_sum_rate{};  ///< emulated, of additions in host memory (device.hpp)

  /// Values for each element of an extent: sums of blocks lie between rounds of a layer elsewhere.
  [[nodiscard]] int extent_planes() const { return layer_sums ? 1 : blocks.planes(); }
};

/// Sums of a step's gradients in host memory, and the knowledge which sums are made elsewhere. T,
/// A: as GradientAccumulator's.
///
/// Order:   a subgroup is fetched once in a pass and written, by a thread of its own ("gradients"),
///          as soon as its lowest layer has come in all rounds.
/// Threads: one at a time calls the members; any may call fetch.
/// Trace:   row "sums to host": sums that were made on the device, a part of a subgroup at a time.
/// Errors:  IoError of the tiers, also of what was written in the background.
template <class T>
class GradientSums {
 public:
  GradientSums(state::ShardMap const& map, int rank, std::vector<state::Subgroup> const& subgroups,
               GradientSettings settings);

  /// `held`: null, as at first: nothing is held on the device. `made_there`: held sums are made on
  /// the device; otherwise they are made here, and sums that stay there are brought when they are
  /// final.
  void set_held(HeldGradients* held, bool made_there);
  /// Sets who hears of each final gradient; see GradientAccumulator.
  void set_receiver(FinalGradients* receiver) noexcept;
  [[nodiscard]] bool made_on_device() const noexcept { return held_ != nullptr && made_there_; }

  /// Errors: PreconditionError: several rounds without GradientSettings::layer_sums.
  void begin_pass(GradientPass const& pass);
  /// Adds the slices of a layer that the active ranks have for this rank, in rank order, each as
  /// long as this rank's part. Layers come in GradientOrder.
  void add(int layer, std::span<T const> slices);
  /// Waits until every subgroup of the pass is where it belongs.
  void end_pass();
  /// Throws what a write in the background met.
  void rethrow() const { flusher_->rethrow(); }
  /// Lets go of the sums at hand, and of what waits to be written. Only late fetches and the
  /// destructor follow.
  void abandon() noexcept;

  /// Host memory between rounds of the largest block; `element`: bytes of all its planes.
  [[nodiscard]] static Bytes block_bytes(state::ShardMap const& map, int rank, Bytes element);

  /// Sum of squares of each chunk of the shard, taken in the last round.
  [[nodiscard]] std::span<double> chunk_norms() noexcept { return chunk_norms_; }
  [[nodiscard]] std::span<double const> chunk_norms() const noexcept { return chunk_norms_; }

  /// Returns a subgroup's gradient; see GradientAccumulator.
  [[nodiscard]] GradientLease fetch(state::Subgroup const& subgroup);
  void begin_update();
  [[nodiscard]] GradientSettings const& settings() const noexcept { return settings_; }

 private:
  /// A: the sums' type.
  template <class A>
  void add_slices(int layer, std::span<T const> slices, GradientRound const& round);
  /// Elements [begin, begin + sums.size()) of the shard: the `part` of every rank's slice that
  /// begins at `offset`.
  template <class A>
  void add_piece(SumPlaces<A> const& sums, std::int64_t begin, std::span<T const> slices,
                 std::int64_t part, std::int64_t offset, GradientRound const& round);
  /// Sums between rounds of the model's block at hand, from element `offset` of this rank's part
  /// on.
  template <class A>
  [[nodiscard]] SumPlaces<A> layer_sums(std::int64_t offset, std::size_t count);
  /// Adds sums of a piece that were made on the device and leave it.
  template <class A>
  void take_piece(state::Subgroup const& subgroup, std::span<A> sums, std::int64_t begin);
  /// The sums of the subgroup that is at hand, which the layers of a round come to in descending
  /// order.
  template <class A>
  [[nodiscard]] SumPlaces<A> open_sums(bool is_new);
  /// Ends the subgroup at hand, of which all layers have come: the next is at hand.
  void close_sums();
  /// The same of one whose sums are on the device.
  void close_held();
  /// The totals in the bytes of an extent of `accumulated`.
  [[nodiscard]] kernels::GradientView totals_in(std::span<std::byte const> bytes) const;
  [[nodiscard]] static kernels::GradientView view_of(std::span<std::byte const> bytes,
                                                     bool as_fp32);
  [[nodiscard]] std::span<double> norms_of(std::int64_t begin, std::size_t count);
  [[nodiscard]] bool stays(std::int64_t subgroup) const {
    return held_ != nullptr && held_->stays(subgroup);
  }

  state::ShardMap const& map_;
  int rank_;
  std::vector<state::Subgroup> const& subgroups_;
  GradientSettings settings_;
  HeldGradients* held_{};
  FinalGradients* receiver_{};
  bool made_there_ = false;
  GradientPass pass_;
  GradientOrder order_;
  std::size_t subgroups_left_ = 0;   ///< subgroups of this pass; the last of them is at hand
  std::vector<double> chunk_norms_;  ///< norms of the shard's chunks
  /// Lease of the subgroup at hand, once a layer has come to it.
  std::optional<tiers::Lease> open_;
  memory::HugeBuffer layer_sums_;  ///< empty unless a pass may have several rounds
  Pacer pacer_;
  std::unique_ptr<GradientFlusher> flusher_;
};

}  // namespace offstage::update
