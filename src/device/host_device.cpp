#include <algorithm>
#include <limits>
#include <map>
#include <mutex>

#include "base/error.hpp"
#include "base/team.hpp"
#include "device/device.hpp"
#include "device/host_stream.hpp"
#include "device/shortage.hpp"
#include "platform/memory/huge_buffer.hpp"

namespace offstage::device {
namespace {

class HostDevice final : public Device {
 public:
  HostDevice(Bytes capacity, Emulation const& emulation)
      : capacity_{capacity > 0 ? capacity : std::numeric_limits<Bytes>::max()},
        host_visible_{emulation.host_to_device <= 0.0 && emulation.device_to_host <= 0.0},
        queues_{emulation.compute > 0.0},
        engines_{emulation} {}

  [[nodiscard]] Kind kind() const noexcept override { return Kind::host; }
  [[nodiscard]] std::string name() const override { return "host (emulated)"; }

  [[nodiscard]] Buffer allocate(Bytes size, std::string const& purpose) override;
  void set_aside(Bytes size, std::string const& purpose) override {
    require(size >= 0, "Device::set_aside: negative size");
    book(size, purpose);
    std::lock_guard const lock{mutex_};
    count(size);
    set_aside_ += size;
  }
  /// A team of its own would fight with the model's over the same cores.
  [[nodiscard]] std::unique_ptr<Stream> make_stream(std::string const& name,
                                                    Priority /*priority*/) override {
    return make_queued_stream(engines_, name);
  }
  [[nodiscard]] std::unique_ptr<Stream> make_calling_stream(std::string const& name) override {
    return queues_ ? make_queued_stream(engines_, name, team_size()) : make_inline_stream(engines_);
  }
  [[nodiscard]] std::unique_ptr<Pinned> pin(std::span<std::byte> /*memory*/) override {
    return std::make_unique<Pinned>();
  }
  [[nodiscard]] bool host_visible() const noexcept override { return host_visible_; }
  [[nodiscard]] Bytes capacity() const noexcept override { return capacity_; }
  [[nodiscard]] Bytes used() const noexcept override {
    std::lock_guard const lock{mutex_};
    return used_;
  }
  [[nodiscard]] Bytes peak() const noexcept override {
    std::lock_guard const lock{mutex_};
    return peak_;
  }

 protected:
  void free(std::byte* data, Bytes size) noexcept override;

 private:
  /// Errors: as allocate.
  void book(Bytes size, std::string const& purpose);
  /// While mutex_ is held: what is booked is there.
  void count(Bytes size) noexcept {
    used_ += size;
    peak_ = std::max(peak_, used_);
  }

  Bytes const capacity_;
  bool const host_visible_;
  bool const queues_;  ///< the model's work
  HostEngines engines_;
  mutable std::mutex mutex_;  ///< guards all below
  Bytes booked_{};            ///< what is used, and what is about to be
  Bytes used_{};
  Bytes peak_{};
  Bytes set_aside_{};  ///< of used_
  std::map<std::byte*, memory::HugeBuffer> blocks_;
};

void HostDevice::book(Bytes size, std::string const& purpose) {
  std::lock_guard const lock{mutex_};
  if (size > capacity_ - booked_) {
    throw_shortage({.purpose = purpose,
                    .wanted = size,
                    .available = capacity_ - booked_,
                    .capacity = capacity_,
                    .set_aside = set_aside_});
  }
  booked_ += size;
}

Buffer HostDevice::allocate(Bytes size, std::string const& purpose) {
  require(size >= 0, "Device::allocate: negative size");
  if (size == 0) {
    return {};
  }
  book(size, purpose);  // others need not wait while the pages are touched
  try {
    memory::HugeBuffer block{size};
    auto* const data = block.bytes().data();
    std::lock_guard const lock{mutex_};
    blocks_.emplace(data, std::move(block));
    count(size);
    return {*this, data, size};
  } catch (...) {
    std::lock_guard const lock{mutex_};
    booked_ -= size;
    throw;
  }
}

void HostDevice::free(std::byte* data, Bytes size) noexcept {
  memory::HugeBuffer block;  // its pages go back without the lock
  std::lock_guard const lock{mutex_};
  auto const at = blocks_.find(data);
  block = std::move(at->second);
  blocks_.erase(at);
  booked_ -= size;
  used_ -= size;
}

}  // namespace

void Buffer::reset() noexcept {
  if (owner_ != nullptr && data_ != nullptr) {
    owner_->free(data_, size_);
  }
  owner_ = nullptr;
  data_ = nullptr;
  size_ = 0;
}

std::unique_ptr<Device> make_host_device(Bytes capacity, Emulation const& emulation) {
  return std::make_unique<HostDevice>(capacity, emulation);
}

}  // namespace offstage::device
