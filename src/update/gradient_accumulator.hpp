#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/pacer.hpp"
#include "device/device.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/trace/trace.hpp"
#include "state/exchange.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"
#include "tiers/tiers.hpp"
#include "update/device_memory.hpp"
#include "update/gradient_flusher.hpp"
#include "update/gradient_transfer.hpp"
#include "update/held_gradients.hpp"
#include "update/slice_transfer.hpp"
#include "update/subgroup_step.hpp"
#include "update/views.hpp"

namespace offstage::update {

/// The accumulated gradient of one subgroup, until it ends.
struct GradientLease {
  tiers::Lease lease;
  GradientView view;  ///< an element for each of the subgroup's
  /// device: held there (held_gradients.hpp), without a lease.
  GradientPlace place = GradientPlace::host;
  HeldGradients::Reading reading{};
};

/// Where the accumulated gradients are.
struct GradientSettings {
  bool accumulate_fp32 = true;  ///< else the sum rounds to T
  /// Holds the accumulated gradient, key = Subgroup::index, 4 or sizeof(T) bytes an element: in host
  /// memory what fits there, the rest as spilled extents. Its bytes live until the step has committed.
  std::unique_ptr<tiers::Tiers> accumulated;
  /// update.gradients=flush-fp32, the ZeRO-Infinity baseline: the last round converts every subgroup's
  /// gradient to FP32 and writes it here, and the update reads it from here. Null: conversion is
  /// delayed until the update (MLP section 3.2).
  std::unique_ptr<tiers::Tiers> flushed;
  /// Told in the last round of each subgroup whose gradient fetch can give from then on, with the sum of its
  /// squares where it is known (0: it is summed on the device). By any thread; null: nobody wants to know.
  GradientFlusher::OnFinal on_final{};
  trace::Trace* trace{};   ///< of what leaves the device; null: none
  DeviceMemory* memory{};  ///< told of the copy that leaves; null: nobody
  double host_sum_rate{};  ///< emulated, of additions in host memory (device.hpp)
};

/// This rank's shard of the step's gradient. Each slice of a layer's gradient goes to its owner,
/// who adds the slices of one round in order of the global micro-batch: acc = round(acc + grad_g).
/// The bits depend neither on the number of ranks nor on where the gradients lie.
///
/// A device that is not host_visible: a layer leaves it while the backward of the next one runs
/// (gradient_transfer.hpp), and is sent and added in that one's add; the last in its own. Or the ranks pass
/// slices from device to device, and those leave it (slice_transfer.hpp).
///
/// Subgroups that are held on the device (held_gradients.hpp): with one rank, or where ranks pass slices from device
/// to device, their sums are made there, by the same additions in the same order, and that part of a layer never leaves
/// it; where slices come to host memory they are made here and go to the device as they become final.
///
/// T: type of the model's gradients. Rounds to T or to FP32.
/// Memory: host: that of the tiers and exchange_bytes. Device: device_bytes.
/// Threads: one, the one that calls MPI; what leaves host memory is written by a thread of its own
///         ("gradients") while backward goes on.
/// Collective: add and norm. The link's route, which is the same on all ranks, decides when they exchange.
template <class T>
class GradientAccumulator final : public state::GradientSink<T> {
 public:
  /// `stream`: that of the model.
  GradientAccumulator(state::ShardMap const& map, state::RankLink& link, device::Device& device,
                      device::Stream& stream, std::vector<state::Subgroup> const& subgroups,
                      GradientSettings settings);

  /// What holds gradients on the device; null, as at first: nothing. Outlives the calls. Its hold() is called
  /// between steps alone.
  /// Errors: PreconditionError: the device is host_visible, or gradients are flushed.
  void set_held(HeldGradients* held);
  /// A new step begins with the next round.
  void begin_step() noexcept { fresh_ = true; }
  /// Before each round of backward: ranks 0 .. active - 1 have a micro-batch in it. `last`: no round of
  /// this step follows, so norms are taken as the sums become final.
  void begin_round(int active, bool last);
  /// In a round every layer comes once, the last first: a subgroup is fetched once and written as soon
  /// as its lowest layer has come.
  /// Errors: IoError of the tiers, also of what was written in the background; from then on every call
  ///         throws it.
  void add(int layer, std::span<T const> gradient) override;
  /// After each round: every subgroup's sums are where they belong.
  /// Errors: as add.
  void end_round();
  /// The run has failed, in the middle of a round perhaps: lets go of the sums at hand, whose buffer a fetch
  /// may wait for. Nothing but the destructor follows, and fetches that are late.
  void abandon() noexcept { open_.reset(); }

  /// sqrt of the sum of squares of all ranks' accumulated gradients, before scaling: chunk sums in
  /// (layer, chunk) order, padding included as zeros. Not finite if any gradient is not.
  /// Collective. After the last round's adds, whatever is still to be written.
  [[nodiscard]] double norm() const;

  /// Of the step's gradients, after the last round, or once on_final has named it. Threads: any, one lease per subgroup at a time.
  [[nodiscard]] GradientLease fetch(state::Subgroup const& subgroup);
  /// Before the update's fetches.
  void begin_update();

  /// So far, of `accumulated` and then of `flushed` if there is one. Figures of paths that tiers share
  /// are in each.
  [[nodiscard]] std::vector<tiers::Traffic> traffic() const;
  [[nodiscard]] bool is_fp32() const noexcept { return settings_.accumulate_fp32; }
  /// Host memory of the exchange's buffers: a layer to send if it is staged, and this rank's part of a layer
  /// from every rank if there are several. What one object will take beside its tiers, so that memory can be
  /// planned before it is made. One rank's route: in_place if the device is host_visible, else staged.
  [[nodiscard]] static Bytes exchange_bytes(state::ShardMap const& map, int rank,
                                            state::Route route);
  /// Device memory: a layer on its way unless it stays in place, and what is received if that goes there.
  [[nodiscard]] static Bytes device_bytes(state::ShardMap const& map, int rank, state::Route route);

 private:
  /// Adds what stays on the device, on this stream: of the layer's slices, `ranks` of one length in rank order. The
  /// parts of them, in bytes, that have to leave it.
  [[nodiscard]] std::vector<Range> add_held(device::Stream& stream, int layer,
                                            std::span<T const> slices, int ranks);
  /// Adds the layer that is on its way to the host, if any.
  void add_coming();
  /// Begins to pass a layer on, from device to device.
  void begin_slices(int layer, std::span<T const> gradient);
  /// Exchanges a layer that host code may read, and adds.
  void sum(int layer, std::span<T const> gradient);
  /// Adds what the active ranks have for me, in rank order.
  void add_all(int layer, std::span<T const> slices);
  /// Of the layer's bytes what goes to each rank, of a rank that has a gradient, and what comes from each.
  [[nodiscard]] std::vector<Slice> send_parts(int layer, bool any) const;
  [[nodiscard]] std::vector<Slice> receive_parts(int layer) const;
  /// Sends each rank its slice of the layer. What the active ranks sent me, in rank order.
  [[nodiscard]] std::span<T const> exchange(int layer, std::span<T const> gradient);
  /// Adds the slices of this round, one per active rank and each of my part's length, in rank
  /// order. A: the sums' type.
  template <class A>
  void add_slices(int layer, std::span<T const> slices);
  /// The sums of the subgroup that is at hand, which the layers of a round come to in descending order.
  template <class A>
  [[nodiscard]] std::span<A> open_sums();
  /// Of the subgroup at hand all layers have come: the next is at hand.
  void close_sums();
  /// The same of one whose sums are made on the device.
  void close_held();
  [[nodiscard]] static GradientView view_of(std::span<std::byte const> bytes, bool as_fp32);
  [[nodiscard]] bool is_held(std::int64_t subgroup) const {
    return held_ != nullptr && held_->holds(subgroup);
  }
  /// Whether the sums of what is held are made on the device.
  [[nodiscard]] bool sums_on_device() const {
    return held_ != nullptr && (link_.size() == 1 || slices_ != nullptr);
  }

  state::ShardMap const& map_;
  state::RankLink& link_;
  device::Stream& stream_;
  std::vector<state::Subgroup> const& subgroups_;
  GradientSettings settings_;
  int active_ = 0;
  bool fresh_ = true;  ///< the step's first round: the tiers hold an older step's sums
  bool last_ = false;
  int layers_left_ = 0;               ///< that this round has not added yet
  std::size_t subgroups_left_ = 0;    ///< likewise; the last of them is at hand
  std::vector<double> chunk_norms_;   ///< of the shard, taken in the last round
  std::optional<tiers::Lease> open_;  ///< of the subgroup at hand, once a layer has come to it
  std::unique_ptr<GradientFlusher> flusher_;
  Pacer pacer_;  ///< of additions in host memory
  memory::HugeBuffer receive_;
  std::optional<int> coming_;  ///< the layer that add was given last, if it is still to be added
  std::unique_ptr<GradientTransfer>
      transfer_;                           ///< of one rank or staged layers; null if host_visible
  std::unique_ptr<SliceTransfer> slices_;  ///< of several, from device to device
  HeldGradients* held_{};
};

}  // namespace offstage::update
