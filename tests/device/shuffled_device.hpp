#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "base/random.hpp"
#include "device/device.hpp"

namespace offstage::device {

/// Gives work to another stream and delays it at random. Delays depend on seed, stream and place in the
/// stream alone; what overtakes what depends on the clock too.
class ShuffledStream final : public Stream {
 public:
  ShuffledStream(std::unique_ptr<Stream> inner, std::uint64_t seed, std::uint64_t number,
                 std::chrono::microseconds longest)
      : inner_{std::move(inner)}, seed_{seed}, number_{number}, longest_{longest} {}

  [[nodiscard]] Kind kind() const noexcept override { return inner_->kind(); }
  void copy(void* target, void const* source, Bytes size, Copy direction) override {
    delay();
    inner_->copy(target, source, size, direction);
  }
  void enqueue(std::function<void()> kernel, std::int64_t updates) override {
    delay();
    inner_->enqueue(std::move(kernel), updates);
  }
  [[nodiscard]] void* native() const noexcept override { return inner_->native(); }
  [[nodiscard]] std::shared_ptr<Event> record() override {
    delay();
    return inner_->record();
  }
  void wait(Event const& event) override { inner_->wait(event); }
  void synchronize() override { inner_->synchronize(); }

 private:
  /// Half of the work goes on at once, a quarter is late, a quarter may be very late.
  void delay() {
    auto const words = philox(seed_, number_, place_++);
    std::int64_t const most =
        words[0] % 4 < 2 ? 0 : longest_.count() / (words[0] % 4 == 2 ? 10 : 1);
    if (most > 0) {
      std::chrono::microseconds const pause{words[1] % static_cast<std::uint64_t>(most)};
      inner_->enqueue([pause] { std::this_thread::sleep_for(pause); });
    }
  }

  std::unique_ptr<Stream> inner_;
  std::uint64_t seed_, number_;
  std::chrono::microseconds longest_;
  std::uint64_t place_{};
};

/// An emulated device whose streams delay their work at random, so that work of different streams ends in
/// any order that events allow. Host code must not touch its memory, and fresh memory is not zero: what
/// relies on neither has the bits of any other device.
class ShuffledDevice final : public Device {
 public:
  explicit ShuffledDevice(std::uint64_t seed, Bytes capacity = 0,
                          std::chrono::microseconds longest = std::chrono::microseconds{500},
                          Emulation const& emulation = {})
      : inner_{make_host_device(capacity, emulation)}, seed_{seed}, longest_{longest} {}

  [[nodiscard]] Kind kind() const noexcept override { return inner_->kind(); }
  [[nodiscard]] std::string name() const override { return inner_->name() + ", shuffled"; }
  /// The buffer is the inner device's.
  [[nodiscard]] Buffer allocate(Bytes size, std::string const& purpose) override {
    Buffer buffer = inner_->allocate(size, purpose);
    std::ranges::fill(buffer.as<std::byte>(), std::byte{0xFF});  // NaN in every type
    return buffer;
  }
  [[nodiscard]] std::unique_ptr<Stream> make_stream(std::string const& name) override {
    return shuffled(inner_->make_stream(name));
  }
  /// Delays the caller.
  [[nodiscard]] std::unique_ptr<Stream> make_calling_stream(std::string const& name) override {
    return shuffled(inner_->make_calling_stream(name));
  }
  [[nodiscard]] std::unique_ptr<Pinned> pin(std::span<std::byte> memory) override {
    return inner_->pin(memory);
  }
  [[nodiscard]] bool host_visible() const noexcept override { return false; }
  [[nodiscard]] Bytes capacity() const noexcept override { return inner_->capacity(); }
  [[nodiscard]] Bytes used() const noexcept override { return inner_->used(); }
  [[nodiscard]] Bytes peak() const noexcept override { return inner_->peak(); }

 protected:
  void free(std::byte* /*data*/, Bytes /*size*/) noexcept override {}  // no buffer is its own

 private:
  std::unique_ptr<Stream> shuffled(std::unique_ptr<Stream> inner) {
    return std::make_unique<ShuffledStream>(std::move(inner), seed_, streams_++, longest_);
  }

  std::unique_ptr<Device> inner_;
  std::uint64_t seed_;
  std::chrono::microseconds longest_;
  std::atomic<std::uint64_t> streams_{};
};

}  // namespace offstage::device
