#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/units.hpp"

namespace offstage::cuda {
class BlasLt;
}

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
  /// When the work before the point was done; waits for it. Of points in streams of one device the
  /// differences are right to some microseconds (on a GPU, after hours, to some milliseconds).
  [[nodiscard]] virtual std::chrono::steady_clock::time_point when() const = 0;
};

/// Host memory that a device can copy from and to on its own; ends with this. The memory must
/// outlive it.
class Pinned {
 public:
  virtual ~Pinned() = default;
};

enum class Copy { host_to_device, device_to_host, device_to_device };

/// Which of two streams' kernels a GPU begins first where it could begin either. What moves data is
/// `high`, so that a transfer or an exchange between ranks need not wait until the model's kernels
/// leave room.
enum class Priority { usual, high };

/// A kernel's size, for the rates of an emulated device: a kernel that updates is paced by its
/// updates alone.
struct Work {
  std::int64_t updates = 0;  ///< elements of the state that it updates
  double flops = 0.0;        ///< floating-point operations of the products that it makes
};

/// A queue of work that runs in order; its destructor waits for all of it. Must not outlive its
/// device.
/// Threads: one at a time.
/// Errors:  those of queued work surface at synchronize() and at wait() of an event recorded after
///          it. A stream that failed runs nothing more, nor does one that waits for such an event.
class Stream {
 public:
  virtual ~Stream() = default;
  [[nodiscard]] virtual Kind kind() const noexcept = 0;
  /// Queues a copy. Host memory that is not pinned makes it slower, and synchronous on cuda.
  virtual void copy(void* target, void const* source, Bytes size, Copy direction) = 0;
  /// Queues zeros for device memory; the link is left to others.
  virtual void zero(void* target, Bytes size) = 0;
  /// Queues a kernel of the host backend, to which the emulated rates apply. Kernels of the cuda
  /// backend are launched on native().
  virtual void enqueue(std::function<void()> kernel, Work work = {}) = 0;
  /// The CUstream_st*, whose GPU becomes the calling thread's current one; nullptr on the host
  /// backend.
  [[nodiscard]] virtual void* native() const noexcept = 0;
  /// Device memory that every kernel of this stream may use between its own launches, and none
  /// keeps: 64 MiB in the calling streams of cuda, from what is left to libraries; empty in all
  /// others.
  [[nodiscard]] virtual std::span<std::byte> scratch() const noexcept = 0;
  /// Library handle for matrix products on this stream. It has half of the scratch memory as its
  /// workspace. The first call makes it. Errors: PreconditionError on the host backend.
  [[nodiscard]] virtual cuda::BlasLt& blas() = 0;
  [[nodiscard]] virtual std::shared_ptr<Event> record() = 0;
  /// Work queued later starts after `event`, of this or another stream of the same backend. Never
  /// waits itself, but for a calling stream (below).
  virtual void wait(Event const& event) = 0;
  virtual void synchronize() = 0;
};

/// Memory with a limit, and streams. Memory that is given back must be out of use by every stream.
/// Threads: any.
class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual Kind kind() const noexcept = 0;
  [[nodiscard]] virtual std::string name() const = 0;
  /// Libraries on whose version the bits of a result depend: "cuBLASLt 13.1.0"; empty on the
  /// emulated device.
  /// Errors: CudaError: one is missing.
  [[nodiscard]] virtual std::string libraries() const { return {}; }
  /// `purpose` is named in the error. Aligned to 64 bytes at least; contents undefined.
  /// Errors: UsageError that says what needs how much, what is free, and which keys help.
  [[nodiscard]] virtual Buffer allocate(Bytes size, std::string const& purpose) = 0;
  /// Counts memory that a library takes by itself, for good. Errors: as allocate.
  virtual void set_aside(Bytes size, std::string const& purpose) = 0;
  /// A stream whose work runs beside the caller's: a thread of its own on the emulated device,
  /// whose kernels run on that thread alone.
  [[nodiscard]] virtual std::unique_ptr<Stream> make_stream(std::string const& name,
                                                            Priority priority = Priority::high) = 0;
  /// The stream of the model, of usual priority. On the emulated device its work runs at once, on
  /// the calling thread, whose OpenMP team the kernels use, and errors surface where work is given;
  /// but with an emulated rate of products it is queued, as a GPU's is, and runs on a thread of its
  /// own, whose OpenMP teams are as large as the calling thread's (equal teams, equal bits). A
  /// GPU's has cuBLASLt loaded. Errors: CudaError, also where that is missing.
  [[nodiscard]] virtual std::unique_ptr<Stream> make_calling_stream(std::string const& name) = 0;
  /// Lets the device copy from and to this memory by itself (page-locked and registered on cuda,
  /// nothing on the emulated device). Memory that the system does not lock stays as it is: copies
  /// of it are slower, and the first such says so in a warning, with how much was asked for. No
  /// limit of locked memory (ulimit -l) counts for it.
  [[nodiscard]] virtual std::unique_ptr<Pinned> pin(std::span<std::byte> memory) = 0;
  /// Whether host code may touch device memory as its own: the emulated device without an emulated
  /// link.
  [[nodiscard]] virtual bool host_visible() const noexcept = 0;
  [[nodiscard]] virtual Bytes capacity() const noexcept = 0;
  [[nodiscard]] virtual Bytes used() const noexcept = 0;
  [[nodiscard]] virtual Bytes peak() const noexcept = 0;

 protected:
  friend class Buffer;
  virtual void free(std::byte* data, Bytes size) noexcept = 0;
};

/// Rates that the emulated device pretends to have. 0: as fast as it can.
struct Emulation {
  double host_to_device{};  ///< bytes per second
  double device_to_host{};  ///< bytes per second
  double device_update{};   ///< elements of the state per second, by AdamW on the device
  /// Elements of the state per second on this rank's cores. Whoever updates there applies it.
  double host_update{};
  /// Bytes per second that these cores read and write where they add gradients; applied there too.
  double host_sum{};
  /// Floating-point operations per second of products; kernels between them take no time of their
  /// own.
  double compute{};

  [[nodiscard]] bool any() const noexcept {
    return host_to_device > 0 || device_to_host > 0 || device_update > 0 || host_update > 0 ||
           host_sum > 0 || compute > 0;
  }
};

/// Reads device.emulate:
/// "h2d=3GB/s,d2h=3GB/s,compute=2T,update=900M,host-update=50M,host-sum=500MB/s", any of them, each
/// once; empty: none. Errors: UsageError, without the key's name.
[[nodiscard]] Emulation parse_emulation(std::string const& text);

/// The emulated device: an arena of host memory with a limit of `capacity` bytes (0: none).
///
/// Order: streams are threads. One copy per direction goes at a time, in order of arrival, and
///        takes at least its size divided by the emulated rate; so do kernels that update, one at a
///        time, and kernels that make products. A copy within the device uses no engine.
/// Same results as any legal order of the interface above.
[[nodiscard]] std::unique_ptr<Device> make_host_device(Bytes capacity,
                                                       Emulation const& emulation = {});

/// device.check.
enum class Check {
  off,
  launches  ///< each launch of a kernel or a product waits for its end, so that an error names it
};

/// The GPU of this number among those visible, as CUDA counts them. `capacity`: pretend to have no
/// more (0: all that is free at construction, in equal parts for the `ranks` that compute on it,
/// less what a rank's libraries take). Ranks that share it are all to look before any of them
/// allocates. `checks`: holds for all GPUs of the process while the device lives.
/// Errors: cuda::CudaError; UsageError where CUDA was not compiled in, the GPU is too old
///         (cuda::require_capable) or too small for so many ranks; IoError where others use all of
///         it.
[[nodiscard]] std::unique_ptr<Device> make_cuda_device(int index, Bytes capacity, int ranks = 1,
                                                       Check checks = Check::off);

}  // namespace offstage::device
