#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "device/device.hpp"

namespace offstage::model {

/// Device memory for gradients of layers, padded.
template <class T>
struct GradientMemory {
  std::array<std::span<T>, 2> in_turn;
  std::span<T> attention;  ///< empty: attention's gradient has one of those in turn
};

/// Buffers for the gradients of layers: two in turn, of which one is computed while a
/// state::GradientSink reads the other. Attention's may have a third one. Then the sink has a whole
/// block's time to read an MLP's gradient, for which attention's backward is short.
template <class T>
class GradientBuffers {
 public:
  explicit GradientBuffers(GradientMemory<T> const& memory)
      : memory_{memory.in_turn[0], memory.in_turn[1], memory.attention} {}

  /// Begins with all buffers free; the first in turn comes next.
  void begin() noexcept {
    freed_ = {};
    turn_ = 1;
    given_.reset();
  }
  /// The next buffer in turn, for work that is enqueued on `stream` from now on. The stream waits
  /// until the sink has read the buffer; the caller does not wait.
  [[nodiscard]] std::span<T> next(device::Stream& stream) {
    turn_ = 1 - turn_;
    return take(turn_, stream);
  }
  /// The buffer for attention's gradient; otherwise as next.
  [[nodiscard]] std::span<T> next_of_attention(device::Stream& stream) {
    return memory_[attention].empty() ? next(stream) : take(attention, stream);
  }
  /// Says that the sink has the gradient in the buffer that was taken last, and at which event it
  /// has read the one before.
  void given(std::shared_ptr<device::Event> before) noexcept {
    read_at(std::move(before));
    given_ = taken_;
  }
  /// Says that the sink was given no gradient of a buffer, and at which event it has read the last
  /// one.
  void given_none(std::shared_ptr<device::Event> last) noexcept { read_at(std::move(last)); }

 private:
  static constexpr std::size_t attention = 2;

  /// Says when the sink has read what it got last; null: it has.
  void read_at(std::shared_ptr<device::Event> event) noexcept {
    if (given_) {
      freed_[*given_] = std::move(event);
    }
    given_.reset();
  }
  [[nodiscard]] std::span<T> take(std::size_t buffer, device::Stream& stream) {
    if (auto const freed = std::exchange(freed_[buffer], nullptr)) {
      stream.wait(*freed);
    }
    taken_ = buffer;
    return memory_[buffer];
  }

  std::array<std::span<T>, 3> memory_;
  std::size_t turn_ = 1;              ///< buffer in turn that was taken last
  std::size_t taken_{};               ///< buffer that was taken last
  std::optional<std::size_t> given_;  ///< buffer whose gradient the sink got last
  std::array<std::shared_ptr<device::Event>, 3> freed_;  ///< null: the sink does not read it
};

}  // namespace offstage::model
