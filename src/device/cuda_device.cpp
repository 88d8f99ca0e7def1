#include <string>

#include "base/error.hpp"
#include "device/device.hpp"

#ifdef OFFSTAGE_HAVE_CUDA
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "base/watch.hpp"
#include "device/shortage.hpp"
#include "platform/cuda/blas_lt.hpp"
#include "platform/cuda/check.hpp"
#endif

namespace offstage::device {

#ifdef OFFSTAGE_HAVE_CUDA

namespace {

using cuda::check;

/// What a rank's libraries may still want of the device: their code, workspaces, the stacks of kernels.
constexpr Bytes library_bytes = 1 * GiB;

/// Of that, what a calling stream gives to kernels.
constexpr Bytes scratch_bytes = 64 * MiB;

/// CUDA counts the devices for each thread; what a thread creates or launches is the current one's.
void make_current(int index) {
  check(cudaSetDevice(index));
}

/// A point that both clocks know, the device's and the host's.
class Origin {
 public:
  using Clock = std::chrono::steady_clock;
  /// Blocks until it has come. Of device `index`, the current one; `stream`: an idle one of it.
  Origin(int index, cudaStream_t stream) : index_{index} {
    check(cudaEventCreateWithFlags(&event_, cudaEventBlockingSync));
    // Between the event and the look at the clock a busy host may do something else.
    for (int attempt = 0; attempt < attempts; ++attempt) {
      auto const before = Clock::now();
      check(cudaEventRecord(event_, stream));
      check(cudaEventSynchronize(event_));
      time_ = Clock::now();
      if (time_ - before < close_enough) {
        break;
      }
    }
  }
  ~Origin() {
    static_cast<void>(cudaSetDevice(index_));
    static_cast<void>(cudaEventDestroy(event_));
  }
  Origin(Origin const&) = delete;
  Origin& operator=(Origin const&) = delete;

  [[nodiscard]] Clock::time_point time() const noexcept { return time_; }
  /// When a later event, which has come, came.
  [[nodiscard]] Clock::time_point when(cudaEvent_t event) const {
    make_current(index_);
    float milliseconds{};
    check(cudaEventElapsedTime(&milliseconds, event_, event));
    return time_ + std::chrono::duration_cast<Clock::duration>(
                       std::chrono::duration<float, std::milli>{milliseconds});
  }

 private:
  static constexpr int attempts = 8;
  static constexpr auto close_enough = std::chrono::microseconds{200};
  int index_;
  cudaEvent_t event_{};
  Clock::time_point time_;
};

/// Of a device. Threads: any.
class CudaClock {
 public:
  explicit CudaClock(int index) : index_{index} {}
  ~CudaClock() {
    if (stream_ != nullptr) {
      static_cast<void>(cudaStreamDestroy(stream_));
    }
  }
  CudaClock(CudaClock const&) = delete;
  CudaClock& operator=(CudaClock const&) = delete;

  /// A point not long ago: CUDA gives times between events as floats, in milliseconds.
  [[nodiscard]] std::shared_ptr<Origin const> origin() {
    std::lock_guard const lock{mutex_};
    if (origin_ == nullptr || Origin::Clock::now() - origin_->time() > std::chrono::seconds{10}) {
      make_current(index_);
      if (stream_ == nullptr) {
        check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
      }
      origin_ = std::make_shared<Origin>(index_, stream_);
    }
    return origin_;
  }

 private:
  int index_;
  std::mutex mutex_;  ///< guards all below
  cudaStream_t stream_{};
  std::shared_ptr<Origin const> origin_;
};

class CudaEvent final : public Event {
 public:
  /// Of device `index`, the current one. Threads that have none would open device 0 by some of these calls.
  CudaEvent(int index, std::shared_ptr<Origin const> origin)
      : index_{index}, origin_{std::move(origin)} {
    // Blocking: who waits must not spin on a core that updates state.
    check(cudaEventCreateWithFlags(&event_, cudaEventBlockingSync));
  }
  ~CudaEvent() override {
    static_cast<void>(cudaSetDevice(index_));
    static_cast<void>(cudaEventDestroy(event_));
  }
  CudaEvent(CudaEvent const&) = delete;
  CudaEvent& operator=(CudaEvent const&) = delete;

  void wait() const override {
    Waiting const waiting{"a device stream"};
    check(cudaEventSynchronize(event_));
  }
  [[nodiscard]] std::chrono::steady_clock::time_point when() const override {
    wait();
    return origin_->when(event_);
  }
  [[nodiscard]] cudaEvent_t native() const noexcept { return event_; }

 private:
  int index_;
  std::shared_ptr<Origin const> origin_;
  cudaEvent_t event_{};
};

/// Device memory that no limit counts.
class Scratch {
 public:
  Scratch(int index, Bytes size) : size_{size} {
    if (size > 0) {
      make_current(index);
      check(cudaMalloc(&data_, static_cast<std::size_t>(size)));
    }
  }
  ~Scratch() { static_cast<void>(cudaFree(data_)); }
  Scratch(Scratch const&) = delete;
  Scratch& operator=(Scratch const&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const noexcept {
    return {static_cast<std::byte*>(data_), static_cast<std::size_t>(size_)};
  }

 private:
  void* data_{};
  Bytes size_;
};

/// As the current device counts it: less goes first.
int native_priority(Priority priority) {
  int least{};
  int greatest{};
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  return priority == Priority::high ? greatest : least;
}

class CudaStream final : public Stream {
 public:
  CudaStream(int index, CudaClock& clock, Bytes scratch, Priority priority)
      : index_{index}, clock_{clock}, scratch_{index, scratch} {
    make_current(index_);
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, native_priority(priority)));
  }
  ~CudaStream() override {
    static_cast<void>(cudaSetDevice(index_));
    // An error that nobody waited for has nobody to tell.
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  CudaStream(CudaStream const&) = delete;
  CudaStream& operator=(CudaStream const&) = delete;

  [[nodiscard]] Kind kind() const noexcept override { return Kind::cuda; }
  void copy(void* target, void const* source, Bytes size, Copy direction) override;
  void zero(void* target, Bytes size) override {
    if (size > 0) {
      make_current(index_);
      check(cudaMemsetAsync(target, 0, static_cast<std::size_t>(size), stream_));
    }
  }
  void enqueue(std::function<void()> /*kernel*/, Work /*work*/) override {
    throw PreconditionError{"Stream::enqueue: the kernels of a GPU are launched on native()"};
  }
  [[nodiscard]] void* native() const noexcept override {
    // The launch that follows fails if this does, and says so.
    static_cast<void>(cudaSetDevice(index_));
    return stream_;
  }
  [[nodiscard]] std::span<std::byte> scratch() const noexcept override { return scratch_.bytes(); }
  [[nodiscard]] cuda::BlasLt& blas() override {
    make_current(index_);
    if (!blas_) {
      blas_.emplace(scratch().first(scratch().size() / 2));
    }
    return *blas_;
  }
  [[nodiscard]] std::shared_ptr<Event> record() override {
    make_current(index_);
    auto event = std::make_shared<CudaEvent>(index_, clock_.origin());
    check(cudaEventRecord(event->native(), stream_));
    return event;
  }
  void wait(Event const& event) override {
    auto const* const point = dynamic_cast<CudaEvent const*>(&event);
    require(point != nullptr, "Stream::wait: the event is another device's");
    make_current(index_);
    check(cudaStreamWaitEvent(stream_, point->native(), 0));
  }
  void synchronize() override { record()->wait(); }

 private:
  int index_;
  CudaClock& clock_;
  Scratch scratch_;
  std::optional<cuda::BlasLt> blas_;
  cudaStream_t stream_{};
};

void CudaStream::copy(void* target, void const* source, Bytes size, Copy direction) {
  if (size <= 0) {
    return;
  }
  auto const kind = [direction] {
    switch (direction) {
      case Copy::host_to_device:
        return cudaMemcpyHostToDevice;
      case Copy::device_to_host:
        return cudaMemcpyDeviceToHost;
      case Copy::device_to_device:
        break;
    }
    return cudaMemcpyDeviceToDevice;
  }();
  make_current(index_);
  check(cudaMemcpyAsync(target, source, static_cast<std::size_t>(size), kind, stream_));
}

/// What `ulimit -l` says.
std::string locked_memory_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
    return "unknown";
  }
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited"
                                         : format_bytes(static_cast<Bytes>(limit.rlim_cur));
}

class CudaPinned final : public Pinned {
 public:
  CudaPinned(int index, std::span<std::byte> memory) : index_{index}, data_{memory.data()} {
    make_current(index_);
    Waiting const busy{"the registration of host memory with the GPU"};
    // Portable: pinned for every device of the process.
    auto const code = cudaHostRegister(data_, memory.size(), cudaHostRegisterPortable);
    if (code != cudaSuccess) {
      static_cast<void>(cudaGetLastError());  // or the next launch would report it
      throw Error{
          ExitCode::other,
          fmt::format("cannot pin {} of host memory for the GPU: {}; the limit of locked memory "
                      "(ulimit -l) is {}: raise it, or give the job more memory",
                      format_bytes(static_cast<Bytes>(memory.size())), cudaGetErrorString(code),
                      locked_memory_limit())};
    }
  }
  ~CudaPinned() override {
    static_cast<void>(cudaSetDevice(index_));
    static_cast<void>(cudaHostUnregister(data_));
  }
  CudaPinned(CudaPinned const&) = delete;
  CudaPinned& operator=(CudaPinned const&) = delete;

 private:
  int index_;
  std::byte* data_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, Bytes capacity, int ranks);

  [[nodiscard]] Kind kind() const noexcept override { return Kind::cuda; }
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] Buffer allocate(Bytes size, std::string const& purpose) override;
  void set_aside(Bytes size, std::string const& purpose) override;
  [[nodiscard]] std::unique_ptr<Stream> make_stream(std::string const& /*name*/,
                                                    Priority priority) override {
    return std::make_unique<CudaStream>(index_, clock_, 0, priority);
  }
  [[nodiscard]] std::unique_ptr<Stream> make_calling_stream(std::string const& /*name*/) override {
    // Before the plan looks at the host's memory, and before long work that would be lost without it.
    cuda::BlasLt::load();
    return std::make_unique<CudaStream>(index_, clock_, scratch_bytes, Priority::usual);
  }
  [[nodiscard]] std::unique_ptr<Pinned> pin(std::span<std::byte> memory) override {
    if (memory.empty()) {
      return std::make_unique<Pinned>();
    }
    return std::make_unique<CudaPinned>(index_, memory);
  }
  [[nodiscard]] bool host_visible() const noexcept override { return false; }
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
  /// What is short if there is less than it seems. Both while mutex_ is held. Errors: as allocate.
  [[nodiscard]] Shortage require_room(Bytes size, std::string const& purpose) const;
  void count(Bytes size) noexcept {
    used_ += size;
    peak_ = std::max(peak_, used_);
  }

  int index_;
  CudaClock clock_;
  std::string name_;
  Bytes capacity_{};
  mutable std::mutex mutex_;  ///< guards all below
  Bytes used_{};
  Bytes peak_{};
  Bytes set_aside_{};  ///< of used_
};

CudaDevice::CudaDevice(int index, Bytes capacity, int ranks) : index_{index}, clock_{index} {
  require(ranks >= 1, "CudaDevice: a rank uses it");
  int const count = cuda::device_count();
  if (index < 0 || index >= count) {
    throw cuda::CudaError{fmt::format("there is no GPU {}: {} are visible", index, count)};
  }
  make_current(index_);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index_));
  name_ = properties.name;
  Bytes const available = std::max<Bytes>(0, cuda::free_bytes(index_) / ranks - library_bytes);
  capacity_ = capacity > 0 ? std::min(capacity, available) : available;
}

Shortage CudaDevice::require_room(Bytes size, std::string const& purpose) const {
  Shortage const shortage{.purpose = purpose,
                          .wanted = size,
                          .available = capacity_ - used_,
                          .capacity = capacity_,
                          .set_aside = set_aside_};
  if (size > shortage.available) {
    throw_shortage(shortage);
  }
  return shortage;
}

Buffer CudaDevice::allocate(Bytes size, std::string const& purpose) {
  require(size >= 0, "Device::allocate: negative size");
  if (size == 0) {
    return {};
  }
  make_current(index_);
  std::lock_guard const lock{mutex_};
  auto shortage = require_room(size, purpose);
  void* data{};
  auto const code = cudaMalloc(&data, static_cast<std::size_t>(size));
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // or the next launch would report it
    // Another process has taken some of it, or no piece is large enough.
    shortage.available = std::min(shortage.available, cuda::free_bytes(index_));
    throw_shortage(shortage);
  }
  check(code);
  count(size);
  return {*this, static_cast<std::byte*>(data), size};
}

void CudaDevice::set_aside(Bytes size, std::string const& purpose) {
  require(size >= 0, "Device::set_aside: negative size");
  std::lock_guard const lock{mutex_};
  static_cast<void>(require_room(size, purpose));
  count(size);
  set_aside_ += size;
}

void CudaDevice::free(std::byte* data, Bytes size) noexcept {
  static_cast<void>(cudaSetDevice(index_));
  static_cast<void>(cudaFree(data));
  std::lock_guard const lock{mutex_};
  used_ -= size;
}

}  // namespace

std::unique_ptr<Device> make_cuda_device(int index, Bytes capacity, int ranks) {
  return std::make_unique<CudaDevice>(index, capacity, ranks);
}

#else

std::unique_ptr<Device> make_cuda_device(int /*index*/, Bytes /*capacity*/, int /*ranks*/) {
  throw UsageError{"CUDA was not compiled in; write device.kind=host, or build with nvcc"};
}

#endif

}  // namespace offstage::device
