#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/slice.hpp"
#include "device/device.hpp"
#include "platform/trace/trace.hpp"
#include "update/gradients/arrival.hpp"
#include "update/gradients/staging_buffers.hpp"

namespace offstage::update {

/// Brings gradients from device memory to the host, from where the model has left them, on a stream
/// of its own under the model's further work.
///
/// Source:  DOS section 4.1, Table 1. They travel as they are: the conversion to FP32 is part of
///          the kernel that accumulates, so that an FP32 transfer, of more bytes, is never the
///          faster way.
/// Memory:  host: two gradients, pinned: one is added while the next one comes.
/// Threads: one.
/// Errors:  construction: those of Device::pin. Members: what the streams throw.
class GradientTransfer {
 public:
  /// `stream`: that of the model. `most_bytes`: of the largest gradient.
  GradientTransfer(device::Device& device, device::Stream& stream, Bytes most_bytes,
                   trace::Trace* trace);

  /// Sends these parts of a layer's gradient as the model's stream leaves it. The gradient is
  /// read until the arrival's point has come. Waits until the transfer of two calls ago has ended.
  [[nodiscard]] GradientArrival begin(int layer, std::span<std::byte const> gradient,
                                      std::span<Slice const> parts);
  /// Host memory that one object takes.
  [[nodiscard]] static constexpr Bytes host_bytes(Bytes most_bytes) { return buffers * most_bytes; }

 private:
  static constexpr int buffers = 2;
  device::Stream& model_stream_;
  trace::Trace* trace_;
  StagingBuffers staging_;
  std::unique_ptr<device::Stream> stream_;  // last: it waits for its copies to the above
};

}  // namespace offstage::update
