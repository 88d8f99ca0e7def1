#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/slice.hpp"
#include "device/device.hpp"
#include "state/exchange.hpp"
#include "state/rank_link.hpp"
#include "state/shard.hpp"
#include "update/gradients/arrival.hpp"
#include "update/gradients/held_gradients.hpp"
#include "update/gradients/order.hpp"
#include "update/gradients/slice_transfer.hpp"
#include "update/gradients/staging_buffers.hpp"
#include "update/gradients/step_gradients.hpp"
#include "update/gradients/summing_thread.hpp"
#include "update/gradients/sums.hpp"
#include "update/gradients/transfer.hpp"

namespace offstage::update {

/// This rank's shard of the step's gradient. Each slice of a layer's gradient goes to its owner,
/// who adds the slices in the order that SumBlocks gives global micro-batches.
/// The bits depend neither on the number of ranks nor on where the gradients lie.
///
/// A device that is not host_visible: a layer leaves it while the backward of the next ones runs
/// (transfer.hpp), and a thread of its own adds it (summing_thread.hpp), so that the calling thread
/// only launches; of several ranks that thread sends a layer's slices in the add of the next layer
/// but one, when it has left the device meanwhile. Or the ranks pass slices from device to device,
/// and those leave it (slice_transfer.hpp). Where the device is host_visible, and its cores are the
/// model's, the calling thread adds.
///
/// Subgroups that are held on the device (held_gradients.hpp): with one rank, or where ranks pass
/// slices from device to device, their sums are made there, by the same additions in the same
/// order, and that part of a layer never leaves it; sums that do not stay there leave when they are
/// final. Where slices come to host memory sums are made here, and those that are to stay on the
/// device go there as they become final.
///
/// T: type of the model's gradients. Rounds to T or to FP32.
/// Memory: host: that of the tiers and exchange_bytes. Device: device_bytes.
/// Threads: one, the one that calls MPI; threads of its own add ("gradient sums") and write what
///          leaves host memory
///         ("gradients") while backward goes on.
/// Waiting: add waits until what was added two calls ago is summed, or, for a place on the device
/// that sums have in turn, what was added before it; the round's last add until all is.
/// Collective: add and norm. The link's route, which is the same on all ranks, decides when they
/// exchange.
template <class T>
class GradientAccumulator final : public StepGradients<T> {
 public:
  /// `stream`: that of the model.
  GradientAccumulator(state::ShardMap const& map, state::RankLink& link, device::Device& device,
                      device::Stream& stream, std::vector<state::Subgroup> const& subgroups,
                      GradientSettings settings);

  void set_held(HeldGradients* held) override;
  void set_receiver(FinalGradients* receiver) noexcept override { sums_.set_receiver(receiver); }
  void begin_step() noexcept override { next_ = 0; }
  /// In a round a subgroup is fetched once and written as soon as its lowest layer has come.
  void begin_round(int active, bool last) override;
  /// Micro-batch g is rank g mod R's.
  /// Errors: PreconditionError: several rounds without GradientSettings::layer_sums.
  void begin_rounds_in_layers(int micro_batches) override;
  std::shared_ptr<device::Event> add(int layer, std::span<T const> gradient) override;
  void end_round() override;
  void abandon() noexcept override;
  [[nodiscard]] double norm() const override;
  [[nodiscard]] GradientLease fetch(state::Subgroup const& subgroup) override {
    return sums_.fetch(subgroup);
  }
  void begin_update() override { sums_.begin_update(); }

  /// Host memory of the exchange's buffers: two layers to send if they are staged, and this rank's
  /// part of a layer from every rank if there are several, twice but in place. What one object will
  /// take beside its tiers, so that memory can be planned before it is made. One rank's route:
  /// in_place if the device is host_visible, else staged. `layer_sum`: bytes of an element of a
  /// block's sums between its rounds; 0: begin_rounds_in_layers is not called.
  [[nodiscard]] static Bytes exchange_bytes(state::ShardMap const& map, int rank,
                                            state::Route route, Bytes layer_sum = 0);
  /// Device memory: what is received if that goes there.
  [[nodiscard]] static Bytes device_bytes(state::ShardMap const& map, int rank, state::Route route);

 private:
  void begin_pass(GradientPass const& pass);
  /// Each takes a layer's gradient by one route. The point behind which the layer's before is not
  /// used any more.
  void add_in_place(int layer, std::span<T const> gradient, GradientRound const& round);
  [[nodiscard]] std::shared_ptr<device::Event> add_staged(int layer, std::span<T const> gradient,
                                                          GradientRound const& round);
  [[nodiscard]] std::shared_ptr<device::Event> add_direct(int layer, std::span<T const> gradient,
                                                          GradientRound const& round);
  /// Adds what stays on the device, on this stream: of the layer's slices, all of one length in
  /// rank order. The parts of them, in bytes, that have to leave it.
  [[nodiscard]] std::vector<Slice> add_held(device::Stream& stream, int layer,
                                            std::span<T const> slices, GradientRound const& round);
  /// Sends each rank its slice of the oldest layer that is staged, and what comes to the sums.
  void exchange_staged();
  /// Passes the layer that is on its way from device to device, if any, and what has to leave the
  /// device to the sums.
  [[nodiscard]] std::shared_ptr<device::Event> exchange_direct();
  /// The round's last layer has come: returns when all are added.
  void finish_round();
  /// Parts of the layer's bytes for each rank, of a rank that has a gradient, and parts that come
  /// from each.
  [[nodiscard]] std::vector<Slice> send_parts(int layer, bool any) const;
  [[nodiscard]] std::vector<Slice> receive_parts(int layer, GradientRound const& round) const;
  /// By MPI, from host memory.
  void exchange(int layer, std::span<std::byte const> gradient, GradientRound const& round,
                std::span<std::byte> received);
  /// Bytes of all slices that come of a layer.
  [[nodiscard]] Bytes received_bytes(int layer, GradientRound const& round) const;

  /// A layer that is to be sent to the ranks.
  struct Staged {
    int layer;
    GradientRound round;
    std::optional<GradientArrival> gradient;  ///< none: this rank is idle
  };

  state::ShardMap const& map_;
  state::RankLink& link_;
  device::Stream& stream_;
  GradientSums<T> sums_;
  HeldGradients* held_{};
  /// The step's next micro-batch; 0: the tiers hold an older step's sums.
  std::int64_t next_ = 0;
  GradientPass pass_;
  GradientOrder order_;
  trace::Trace* trace_;                         ///< trace of exchanges; null: none
  std::unique_ptr<GradientTransfer> transfer_;  ///< transfer of the route staged; else null
  std::unique_ptr<SliceTransfer> slices_;       ///< transfer of the route direct; else null
  /// Buffers for slices of several ranks that come to host memory; else null.
  std::unique_ptr<StagingBuffers> receive_;
  std::deque<Staged> staged_;                             ///< by transfer_, of several ranks
  std::optional<std::pair<int, GradientRound>> passing_;  ///< the layer that slices_ has
  /// Point at which the layer before had left the device.
  std::shared_ptr<device::Event> left_;
  /// Null if the route is in_place; last: it uses the above.
  std::unique_ptr<SummingThread> summing_;
};

}  // namespace offstage::update
