#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "device/device.hpp"
#include "device/memory_counter.hpp"
#include "platform/trace/trace.hpp"
#include "update/gradients/staging_buffers.hpp"

namespace offstage::update {

/// A layer's gradient, or the ranks' slices of it, in host memory or on its way there. Whoever has
/// this has the memory.
class GradientArrival {
 public:
  /// The way from the device.
  struct Way {
    std::shared_ptr<device::Event> begun{}, arrived{};
    Bytes moved{};  ///< moved bytes of the gradient; the rest of it is undefined
    trace::Trace* trace{};
    /// Told of what was taken of device memory for it, until it has arrived; null: nobody is.
    device::MemoryCounter* memory{};
    Bytes taken_bytes{};
    device::MemoryCounter::Clock::time_point taken{};
  };

  /// Is there.
  GradientArrival(int layer, StagingBuffers::Part part, Bytes bytes)
      : layer_{layer}, part_{std::move(part)}, bytes_{bytes} {}
  GradientArrival(int layer, StagingBuffers::Part part, Bytes bytes, Way way)
      : layer_{layer}, part_{std::move(part)}, bytes_{bytes}, way_{std::move(way)} {}

  [[nodiscard]] int layer() const noexcept { return layer_; }
  /// The point behind which it is there; null: it is.
  [[nodiscard]] std::shared_ptr<device::Event> const& arrived() const noexcept {
    return way_.arrived;
  }
  /// Waits until it is there, once. Trace: row "gradients to host". Errors: what the stream threw.
  [[nodiscard]] std::span<std::byte const> wait() const;

 private:
  int layer_;
  StagingBuffers::Part part_;
  Bytes bytes_;
  Way way_;
};

}  // namespace offstage::update
