#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/units.hpp"

namespace offstage::device {

enum class Kind {
  host,  ///< emulated: memory is host memory with a limit, kernels run on the CPU
  cuda,
};

class Device;

/// Owns bytes of device memory; move-only. Must not outlive its device.
class Buffer {
 public:
  Buffer() noexcept = default;
  Buffer(Device& owner, std::byte* data, Bytes size) : owner_{&owner}, data_{data}, size_{size} {}
  ~Buffer() { reset(); }
  Buffer(Buffer const&) = delete;
  Buffer& operator=(Buffer const&) = delete;
  Buffer(Buffer&& other) noexcept
      : owner_{std::exchange(other.owner_, nullptr)},
        data_{std::exchange(other.data_, nullptr)},
        size_{std::exchange(other.size_, 0)} {}
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken{std::move(other)};
    std::swap(owner_, taken.owner_);
    std::swap(data_, taken.data_);
    std::swap(size_, taken.size_);
    return *this;
  }
  /// A device address: only kernels and copies may touch it.
  template <class T>
  [[nodiscard]] std::span<T> as() const noexcept {
    return {reinterpret_cast<T*>(data_), static_cast<std::size_t>(size_) / sizeof(T)};
  }
  [[nodiscard]] Bytes size() const noexcept { return size_; }
  void reset() noexcept;

 private:
  Device* owner_{};
  std::byte* data_{};
  Bytes size_{};
};

/// A point in a stream's work; copies of it name the same point.
class Event {
 public:
  virtual ~Event() = default;
  /// Blocks the calling thread until the work before the point is done.
  virtual void wait() const = 0;
};

enum class Copy { host_to_device, device_to_host, device_to_device };

/// A queue of work that runs in order. Errors of queued work surface at synchronize() or wait().
/// Threads: one at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  [[nodiscard]] virtual Kind kind() const noexcept = 0;
  virtual void copy(void* target, void const* source, Bytes size, Copy direction) = 0;
  /// Queues a kernel of the host backend. Kernels of the cuda backend are launched on native().
  virtual void enqueue(std::function<void()> kernel) = 0;
  /// The CUstream_st*; nullptr on the host backend.
  [[nodiscard]] virtual void* native() const noexcept = 0;
  [[nodiscard]] virtual std::shared_ptr<Event> record() = 0;
  /// Work queued later starts after `event`.
  virtual void wait(Event const& event) = 0;
  virtual void synchronize() = 0;
};

/// Memory with a limit, and streams.
class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual Kind kind() const noexcept = 0;
  [[nodiscard]] virtual std::string name() const = 0;
  /// `purpose` is named in the error. Aligned to 64 bytes at least; contents undefined.
  /// Errors: UsageError that says what needs how much, what is free, and which keys help.
  [[nodiscard]] virtual Buffer allocate(Bytes size, std::string const& purpose) = 0;
  [[nodiscard]] virtual std::unique_ptr<Stream> make_stream(std::string const& name) = 0;
  [[nodiscard]] virtual Bytes capacity() const noexcept = 0;
  [[nodiscard]] virtual Bytes used() const noexcept = 0;
  [[nodiscard]] virtual Bytes peak() const noexcept = 0;

 protected:
  friend class Buffer;
  virtual void free(std::byte* data, Bytes size) noexcept = 0;
};

/// The emulated device. Its streams run work at once on the calling thread, in the order in which
/// it is queued: the same results as any legal order of the interface above. `capacity` in bytes; 0
/// means no limit.
[[nodiscard]] std::unique_ptr<Device> make_host_device(Bytes capacity);

}  // namespace offstage::device
