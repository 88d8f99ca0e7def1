#include <string>

#include "base/error.hpp"
#include "device/device.hpp"

#ifdef OFFSTAGE_HAVE_CUDA
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "base/log.hpp"
#include "base/watch.hpp"
#include "device/cuda_event.hpp"
#include "device/shortage.hpp"
#include "platform/cuda/blas_lt.hpp"
#include "platform/cuda/check.hpp"
#include "platform/cuda/gpus.hpp"
#endif

namespace offstage::device {

#ifdef OFFSTAGE_HAVE_CUDA

namespace {

using cuda::check;

/// Memory that a rank's libraries may still want of the device: their code, workspaces, the stacks
/// of kernels.
constexpr Bytes library_bytes = 1 * GiB;

/// Of that, what a calling stream gives to kernels.
constexpr Bytes scratch_bytes = 64 * MiB;

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

bool is_pinned(void const* host) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, host));
  return attributes.type == cudaMemoryTypeHost;
}

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
  if (direction == Copy::device_to_host && !is_pinned(target)) {
    synchronize();  // the copy returns when it is done, and would spin until the stream comes to it
  }
  check(cudaMemcpyAsync(target, source, static_cast<std::size_t>(size), kind, stream_));
}

/// Memory that is registered; ends with this.
class CudaPinned final : public Pinned {
 public:
  CudaPinned(int index, std::byte* data) : index_{index}, data_{data} {}
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
  CudaDevice(int index, Bytes capacity, int ranks, Check checks);

  [[nodiscard]] Kind kind() const noexcept override { return Kind::cuda; }
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string libraries() const override { return cuda::BlasLt::version(); }
  [[nodiscard]] Buffer allocate(Bytes size, std::string const& purpose) override;
  void set_aside(Bytes size, std::string const& purpose) override;
  [[nodiscard]] std::unique_ptr<Stream> make_stream(std::string const& /*name*/,
                                                    Priority priority) override {
    return std::make_unique<CudaStream>(index_, clock_, 0, priority);
  }
  [[nodiscard]] std::unique_ptr<Stream> make_calling_stream(std::string const& /*name*/) override {
    // Before the plan looks at the host's memory, and before long work that would be lost without
    // it.
    cuda::BlasLt::load();
    return std::make_unique<CudaStream>(index_, clock_, scratch_bytes, Priority::usual);
  }
  [[nodiscard]] std::unique_ptr<Pinned> pin(std::span<std::byte> memory) override;
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
  std::optional<cuda::WaitForLaunches> waits_;
  std::string name_;
  Bytes capacity_{};
  std::atomic<bool> said_unpinned_{false};
  mutable std::mutex mutex_;  ///< guards all below
  Bytes used_{};
  Bytes peak_{};
  Bytes set_aside_{};  ///< of used_
};

CudaDevice::CudaDevice(int index, Bytes capacity, int ranks, Check checks)
    : index_{index}, clock_{index} {
  require(ranks >= 1, "CudaDevice: a rank uses it");
  auto const gpus = cuda::find_gpus();
  if (index < 0 || index >= gpus.count) {
    throw cuda::CudaError{fmt::format("there is no GPU {}: {} are visible{}{}", index, gpus.count,
                                      gpus.why.empty() ? "" : "; ", gpus.why)};
  }
  make_current(index_);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index_));
  name_ = properties.name;
  cuda::require_capable(fmt::format("GPU {} ({})", index, name_),
                        {.major = properties.major,
                         .minor = properties.minor,
                         .shared_bytes = properties.sharedMemPerBlockOptin});
  if (checks == Check::launches) {
    waits_.emplace();
  }
  auto const [unused, total] = cuda::memory_of(index_);
  // A rank's own start takes less than that.
  if (Bytes const others = total - unused; others > 2 * library_bytes * ranks) {
    log::warning("{}: {} of its {} are used by other processes (nvidia-smi lists them)",
                 cuda::own_gpu(), format_bytes(others), format_bytes(total));
  }
  Bytes const available = unused / ranks - library_bytes;
  if (available <= 0) {
    auto const text = fmt::format(
        "{} of GPU {} ({}) are free, and each of its ranks (here {}) leaves {} of its part to "
        "libraries; end what else uses it (nvidia-smi lists that), or start fewer ranks on it",
        format_bytes(unused), index, name_, ranks, format_bytes(library_bytes));
    if (total / ranks > library_bytes) {
      throw IoError{text};  // another GPU of this kind, or this one later, has the room
    }
    throw UsageError{text};
  }
  capacity_ = capacity > 0 ? std::min(capacity, available) : available;
}

std::unique_ptr<Pinned> CudaDevice::pin(std::span<std::byte> memory) {
  if (memory.empty()) {
    return std::make_unique<Pinned>();
  }
  make_current(index_);
  Waiting const busy{"the registration of host memory with the GPU"};
  // Portable: pinned for every device of the process.
  auto const code = cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
  if (code == cudaSuccess) {
    return std::make_unique<CudaPinned>(index_, memory.data());
  }
  static_cast<void>(cudaGetLastError());  // or the next launch would report it
  if (!said_unpinned_.exchange(true)) {
    log::warning(
        "cannot pin {} of host memory for the GPU: {}; what cannot be is copied more slowly; give "
        "the job more memory, or see what dmesg says of it",
        format_bytes(static_cast<Bytes>(memory.size())), cudaGetErrorString(code));
  }
  return std::make_unique<Pinned>();
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
    shortage.available = std::min(shortage.available, cuda::memory_of(index_).free);
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

std::unique_ptr<Device> make_cuda_device(int index, Bytes capacity, int ranks, Check checks) {
  return std::make_unique<CudaDevice>(index, capacity, ranks, checks);
}

#else

std::unique_ptr<Device> make_cuda_device(int /*index*/, Bytes /*capacity*/, int /*ranks*/,
                                         Check /*checks*/) {
  throw UsageError{"CUDA was not compiled in; write device.kind=host, or build with nvcc"};
}

#endif

}  // namespace offstage::device
