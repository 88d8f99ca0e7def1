#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "device/device.hpp"
#include "platform/memory/huge_buffer.hpp"
#include "platform/trace/trace.hpp"
#include "update/device_memory.hpp"
#include "update/subgroup_step.hpp"

namespace offstage::update {

/// Brings gradients from device memory to the host under the model's further work, one at a time: from
/// a copy on the device, on a stream of its own.
///
/// Source:  DOS section 4.1, Table 1. They travel as they are: the conversion to FP32 is part of the
///          kernel that accumulates, so that an FP32 transfer, of more bytes, is never the faster way.
/// Memory:  device: one gradient. Host: one, pinned.
/// Threads: one.
/// Trace:   row "gradients to host"; `memory` is told of the copy.
/// Errors:  construction: UsageError of the device. Members: what the streams throw.
class GradientTransfer {
 public:
  /// `stream`: that of the model. `most_bytes`: of the largest gradient.
  GradientTransfer(device::Device& device, device::Stream& stream, Bytes most_bytes,
                   trace::Trace* trace, DeviceMemory* memory = nullptr);
  /// Waits for what is on its way.
  ~GradientTransfer();
  GradientTransfer(GradientTransfer const&) = delete;
  GradientTransfer& operator=(GradientTransfer const&) = delete;

  /// Takes these parts (in bytes) of a layer's gradient as the model's stream leaves it, for whose further work
  /// `gradient` is free again. finish() has followed the last begin().
  void begin(int layer, std::span<std::byte const> gradient, std::span<Range const> parts);
  /// The gradient in host memory, there until the next begin(); what was no part of it is undefined.
  [[nodiscard]] std::span<std::byte const> finish();

 private:
  device::Stream& model_stream_;
  trace::Trace* trace_;
  DeviceMemory* memory_;
  device::Buffer held_;      ///< the copy on the device
  memory::HugeBuffer sent_;  ///< and on the host
  std::unique_ptr<device::Pinned> pinned_;
  std::unique_ptr<device::Stream> stream_;
  int layer_ = -1;                         ///< the last one that began
  Bytes bytes_{};                          ///< of its gradient
  Bytes moved_{};                          ///< of those, what moves
  DeviceMemory::Clock::time_point taken_;  ///< when the copy was begun
  std::shared_ptr<device::Event> begun_;
  std::shared_ptr<device::Event> arrived_;  ///< null if nothing is on its way
};

}  // namespace offstage::update
