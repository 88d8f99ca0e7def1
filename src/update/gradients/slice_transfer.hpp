#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/slice.hpp"
#include "device/device.hpp"
#include "device/memory_counter.hpp"
#include "platform/trace/trace.hpp"
#include "state/rank_link.hpp"
#include "update/gradients/arrival.hpp"
#include "update/gradients/staging_buffers.hpp"

namespace offstage::update {

/// Brings this rank its slices of a layer's gradient from the other ranks, from device to device,
/// and takes the parts that have to leave the device to host memory. It works one layer at a time,
/// on a stream of its own, under the model's further work. Ranks exchange in exchange() and not in
/// begin(): a link does everything in the order in which it is told, and parameters gathered
/// between the two would come behind slices that wait for the gradient.
///
/// Memory:  device: received slices. Host: twice as much, pinned: one layer's slices are added
///          while the next layer's come.
/// Threads: one.
/// Trace:   `memory` is told of device memory.
/// Collective: exchange.
/// Errors:  construction: UsageError of the device. Members: what the streams and the link throw.
class SliceTransfer {
 public:
  /// `model`: its stream. `link`: on the route `direct`. `most_received`: bytes of a layer.
  SliceTransfer(device::Device& device, device::Stream& model, state::RankLink& link,
                Bytes most_received, trace::Trace* trace, device::MemoryCounter* memory);

  /// Takes a layer's gradient in device memory, as the model's stream leaves it. A rank without one
  /// sends nothing. Parts: as RankLink::all_to_all. finish() has followed the last begin().
  void begin(int layer, std::span<std::byte const> gradient, std::span<Slice const> send_parts,
             std::span<Slice const> receive_parts);
  /// Slices that are received, from the first part to the end of the last, in device memory. They
  /// are for work that stream() is given before finish(). The gradient is read until a point in
  /// stream() behind this.
  [[nodiscard]] std::span<std::byte const> exchange();
  [[nodiscard]] device::Stream& stream() noexcept { return *stream_; }
  /// Sends these parts of the received slices to host memory. Waits until the transfer of two
  /// calls ago has ended.
  [[nodiscard]] GradientArrival finish(std::span<Slice const> parts);
  /// Host memory that one object takes.
  [[nodiscard]] static constexpr Bytes host_bytes(Bytes most_received) {
    return buffers * most_received;
  }

 private:
  static constexpr int buffers = 2;
  device::Stream& model_;
  state::RankLink& link_;
  trace::Trace* trace_;
  device::MemoryCounter* memory_;
  device::Buffer received_;  ///< slices on the device
  StagingBuffers staging_;   ///< and on the host
  std::unique_ptr<device::Stream> stream_;
  int layer_ = -1;  ///< the last one that began
  std::span<std::byte const> gradient_;
  std::vector<Slice> send_parts_;
  std::vector<Slice> receive_parts_;
  Bytes bytes_{};                                   ///< bytes of those parts
  device::MemoryCounter::Clock::time_point taken_;  ///< when it began
  std::shared_ptr<device::Event> begun_;            ///< null: finish came
  bool exchanged_ = false;
};

}  // namespace offstage::update
