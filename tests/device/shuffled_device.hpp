#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/random.hpp"
#include "device/device.hpp"
#include "device/wrapped_device.hpp"

namespace offstage::device {

/// Gives work to another stream and delays it at random. Delays depend on seed, stream and place in
/// the stream alone; what overtakes what depends on the clock too.
class ShuffledStream final : public WrappedStream {
 public:
  ShuffledStream(std::unique_ptr<Stream> inner, std::uint64_t seed, std::uint64_t number,
                 std::chrono::microseconds longest)
      : WrappedStream{std::move(inner)}, seed_{seed}, number_{number}, longest_{longest} {}

  void copy(void* target, void const* source, Bytes size, Copy direction) override {
    delay();
    inner().copy(target, source, size, direction);
  }
  void zero(void* target, Bytes size) override {
    delay();
    inner().zero(target, size);
  }
  void enqueue(std::function<void()> kernel, Work work) override {
    delay();
    inner().enqueue(std::move(kernel), work);
  }
  [[nodiscard]] std::shared_ptr<Event> record() override {
    delay();
    return inner().record();
  }

 private:
  /// Half of the work goes on at once, a quarter is late, a quarter may be very late.
  void delay() {
    auto const words = philox(seed_, number_, place_++);
    std::int64_t const most =
        words[0] % 4 < 2 ? 0 : longest_.count() / (words[0] % 4 == 2 ? 10 : 1);
    if (most > 0) {
      std::chrono::microseconds const pause{words[1] % static_cast<std::uint64_t>(most)};
      inner().enqueue([pause] { std::this_thread::sleep_for(pause); });
    }
  }

  std::uint64_t seed_, number_;
  std::chrono::microseconds longest_;
  std::uint64_t place_{};
};

/// An emulated device whose streams delay their work at random, so that work of different streams
/// ends in any order that events allow. Host code must not touch its memory, and fresh memory is
/// not zero: what relies on neither has the bits of any other device.
class ShuffledDevice final : public WrappedDevice {
 public:
  explicit ShuffledDevice(std::uint64_t seed, Bytes capacity = 0,
                          std::chrono::microseconds longest = std::chrono::microseconds{500},
                          Emulation const& emulation = {})
      : WrappedDevice{make_host_device(capacity, emulation)}, seed_{seed}, longest_{longest} {}

  [[nodiscard]] std::string name() const override { return WrappedDevice::name() + ", shuffled"; }
  [[nodiscard]] Buffer allocate(Bytes size, std::string const& purpose) override {
    Buffer buffer = WrappedDevice::allocate(size, purpose);
    std::ranges::fill(buffer.as<std::byte>(), std::byte{0xFF});  // NaN in every type
    return buffer;
  }

 protected:
  /// Work of a calling stream delays the caller.
  [[nodiscard]] std::unique_ptr<Stream> wrap(std::unique_ptr<Stream> stream) override {
    return std::make_unique<ShuffledStream>(std::move(stream), seed_, streams_++, longest_);
  }

 private:
  std::uint64_t seed_;
  std::chrono::microseconds longest_;
  std::atomic<std::uint64_t> streams_{};
};

}  // namespace offstage::device
