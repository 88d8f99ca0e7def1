#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "base/error.hpp"
#include "base/watch.hpp"
#include "device/device.hpp"
#include "platform/memory/huge_buffer.hpp"

namespace offstage::device {

void Buffer::reset() noexcept {
  if (owner_ != nullptr && data_ != nullptr) {
    owner_->free(data_, size_);
  }
  owner_ = nullptr;
  data_ = nullptr;
  size_ = 0;
}

namespace {

/// Work is done before record() returns, so every event has happened.
class HostEvent final : public Event {
 public:
  void wait() const override {}
};

class HostStream final : public Stream {
 public:
  [[nodiscard]] Kind kind() const noexcept override { return Kind::host; }
  void copy(void* target, void const* source, Bytes size, Copy /*direction*/) override {
    if (size > 0) {
      std::memcpy(target, source, static_cast<std::size_t>(size));
    }
  }
  void enqueue(std::function<void()> kernel) override {
    Waiting const busy{"a kernel"};
    kernel();
  }
  [[nodiscard]] void* native() const noexcept override { return nullptr; }
  [[nodiscard]] std::shared_ptr<Event> record() override { return std::make_shared<HostEvent>(); }
  void wait(Event const& event) override { event.wait(); }
  void synchronize() override {}
};

class HostDevice final : public Device {
 public:
  explicit HostDevice(Bytes capacity)
      : capacity_{capacity > 0 ? capacity : std::numeric_limits<Bytes>::max()} {}

  [[nodiscard]] Kind kind() const noexcept override { return Kind::host; }
  [[nodiscard]] std::string name() const override { return "host (emulated)"; }

  [[nodiscard]] Buffer allocate(Bytes size, std::string const& purpose) override {
    require(size >= 0, "Device::allocate: negative size");
    if (size > capacity_ - used_) {
      throw UsageError{fmt::format(
          "out of device memory: {} needs {}, but only {} of {} are free; lower train.micro-batch "
          "or train.sequence, set train.recompute=block, or raise device.memory",
          purpose, format_bytes(size), format_bytes(capacity_ - used_), format_bytes(capacity_))};
    }
    if (size == 0) {
      return {};
    }
    memory::HugeBuffer block{size};
    auto* const data = block.bytes().data();
    blocks_.emplace(data, std::move(block));
    used_ += size;
    peak_ = std::max(peak_, used_);
    return {*this, data, size};
  }

  [[nodiscard]] std::unique_ptr<Stream> make_stream(std::string const& /*name*/) override {
    return std::make_unique<HostStream>();
  }
  [[nodiscard]] Bytes capacity() const noexcept override { return capacity_; }
  [[nodiscard]] Bytes used() const noexcept override { return used_; }
  [[nodiscard]] Bytes peak() const noexcept override { return peak_; }

 protected:
  void free(std::byte* data, Bytes size) noexcept override {
    blocks_.erase(data);
    used_ -= size;
  }

 private:
  Bytes capacity_;
  Bytes used_{};
  Bytes peak_{};
  std::map<std::byte*, memory::HugeBuffer> blocks_;
};

}  // namespace

std::unique_ptr<Device> make_host_device(Bytes capacity) {
  return std::make_unique<HostDevice>(capacity);
}

}  // namespace offstage::device
