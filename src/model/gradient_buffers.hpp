#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "device/device.hpp"

namespace offstage::model {

/// Two buffers for the gradients of layers, used in turn: one is computed while a
/// state::GradientSink reads the other.
template <class T>
class GradientBuffers {
 public:
  explicit GradientBuffers(std::array<std::span<T>, 2> const& memory) : memory_{memory} {}

  /// Begins with both buffers free; the first comes next.
  void begin() noexcept {
    freed_ = {};
    turn_ = 1;
  }
  /// The next buffer, for work that is enqueued on `stream` from now on. The stream waits until the
  /// sink has read the buffer; the caller does not wait.
  [[nodiscard]] std::span<T> next(device::Stream& stream) {
    turn_ = 1 - turn_;
    if (auto const freed = std::exchange(freed_[turn_], nullptr)) {
      stream.wait(*freed);
    }
    return memory_[turn_];
  }
  /// Says that the sink has the gradient, and at which event it has read the one before.
  void given(std::shared_ptr<device::Event> before) noexcept {
    free_at(1 - turn_, std::move(before));
  }
  /// Says that the sink was given no gradient, and at which event it has read the last one.
  void given_none(std::shared_ptr<device::Event> last) noexcept { free_at(turn_, std::move(last)); }

 private:
  /// Sets the event at which a buffer is free. Null: no change.
  void free_at(std::size_t buffer, std::shared_ptr<device::Event> point) noexcept {
    if (point) {
      freed_[buffer] = std::move(point);
    }
  }

  std::array<std::span<T>, 2> memory_;
  std::size_t turn_ = 1;  ///< buffer whose gradient was computed last
  std::array<std::shared_ptr<device::Event>, 2> freed_;  ///< null: the sink does not read it
};

}  // namespace offstage::model
