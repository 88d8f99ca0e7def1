#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/mpi/communicator.hpp"
#include "state/exchange.hpp"
#include "state/shard.hpp"

namespace offstage::update {

/// This rank's shard of the step's gradient. Each slice of a layer's gradient goes to its owner,
/// who adds the slices of one round in order of the global micro-batch: acc = round(acc + grad_g).
/// The bits do not depend on the number of ranks.
///
/// T: type of the model's gradients. Rounds to T or to FP32 (`accumulate_fp32`).
/// Memory: host: the accumulator (2 or 4 bytes per element of the shard), one layer to send and
///         this rank's part of a layer from every rank to receive.
template <class T>
class GradientAccumulator final : public state::GradientSink<T> {
 public:
  GradientAccumulator(state::ShardMap const& map, mpi::Communicator const& comm,
                      device::Stream& stream, bool accumulate_fp32);

  /// A new step begins with the next add.
  void begin_step() noexcept;
  /// Before each round of backward: ranks 0 .. active - 1 have a micro-batch in it.
  void begin_round(int active) noexcept;
  void add(int layer, std::span<T const> gradient) override;

  /// sqrt of the sum of squares of all ranks' accumulated gradients, before scaling: chunk sums in
  /// (layer, chunk) order, padding included as zeros. Not finite if any gradient is not.
  /// Collective.
  [[nodiscard]] double norm() const;

  [[nodiscard]] bool is_fp32() const noexcept { return accumulate_fp32_; }
  /// The accumulated shard; the member that matches is_fp32() (or T = float) has the elements.
  [[nodiscard]] std::span<float const> fp32() const noexcept;
  [[nodiscard]] std::span<T const> native() const noexcept;
  /// Host memory of the buffers beside the accumulator, for a device of this kind: what one object
  /// will take, so that memory can be planned before it is made.
  [[nodiscard]] static Bytes exchange_bytes(state::ShardMap const& map, int rank,
                                            device::Kind kind);

 private:
  /// Adds the slices of this round, one per active rank and each of my part's length, in rank
  /// order.
  void add_slices(int layer, std::span<T const> slices);

  state::ShardMap const& map_;
  mpi::Communicator const& comm_;
  device::Stream& stream_;
  bool accumulate_fp32_;
  int active_ = 0;
  std::vector<bool> started_;  ///< per layer: a gradient of this step lies in the accumulator
  memory::HugeBuffer accumulator_;
  memory::HugeBuffer send_;
  memory::HugeBuffer receive_;
};

}  // namespace offstage::update
