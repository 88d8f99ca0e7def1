#include "cuda_on_cpu/runtime.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.hpp"

/// The CUDA runtime's functions that the project calls. Errors come at once, not with a later call.
namespace offstage::cuda_on_cpu {

using Clock = std::chrono::steady_clock;

/// One recording of an event.
struct Point {
  void reach() {
    std::scoped_lock const lock{mutex};
    time = Clock::now();
    reached = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock{mutex};
    changed.wait(lock, [this] { return reached; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  Clock::time_point time;
};

namespace {

constexpr int greatest_priority = -5;

/// A thread that does what is queued, in order.
class Queue {
 public:
  Queue() : thread_{[this] { serve(); }} {}
  ~Queue() {
    {
      std::scoped_lock const lock{mutex_};
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Queue(Queue const&) = delete;
  Queue& operator=(Queue const&) = delete;

  void add(std::function<void()> work) {
    {
      std::scoped_lock const lock{mutex_};
      waiting_.push_back(std::move(work));
      ++added_;
    }
    changed_.notify_all();
  }
  void synchronize() {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [this, end = added_] { return done_ >= end; });
  }

  int priority = 0;  ///< as it was made

 private:
  void serve() {
    std::unique_lock lock{mutex_};
    while (true) {
      changed_.wait(lock, [this] { return ended_ || !waiting_.empty(); });
      if (waiting_.empty()) {
        return;
      }
      auto const work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;  ///< guards all below
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::uint64_t added_{};
  std::uint64_t done_{};
  bool ended_ = false;
  std::thread thread_;
};

struct Runtime {
  std::mutex mutex;  ///< guards all below
  std::map<void*, Bytes> allocated;
  Bytes used{};
  std::map<std::byte*, Bytes> pinned;
  std::set<Queue*> queues;
};

/// Kernels that have run, the one that is to fail, and what every call says since it has.
struct Fault {
  Fault() {
    char const* const number = std::getenv("CUDA_ON_CPU_FAULT");
    failing = number == nullptr ? 0 : std::atoll(number);
  }
  std::atomic<std::int64_t> ran{};
  std::atomic<std::int64_t> failing;
  std::atomic<cudaError_t> error{cudaSuccess};
  std::atomic<std::int64_t> refused_products{};
};
Fault& fault() {
  static Fault of_process;
  return of_process;
}
Runtime& runtime() {
  static Runtime all;
  return all;
}
Queue& default_queue() {
  static Queue queue;
  return queue;
}

/// Host memory of a copy. The driver refuses copies of which only a part is pinned. Whether it
/// takes a part of a page for the page is not documented, so that here a page is pinned as a whole,
/// for such copies alone.
enum class HostRange { pageable, pinned, part_pinned };
HostRange host_range(void const* memory, std::size_t size) {
  constexpr std::uintptr_t page = 4096;
  auto const begin = reinterpret_cast<std::uintptr_t>(memory);
  auto const end = begin + size;
  bool meets_pinned = false;
  std::scoped_lock const lock{runtime().mutex};
  for (auto const& [memory_of_range, length] : runtime().pinned) {
    auto const from = reinterpret_cast<std::uintptr_t>(memory_of_range);
    auto const to = from + static_cast<std::uintptr_t>(length);
    if (begin >= from && end <= to) {
      return HostRange::pinned;
    }
    meets_pinned =
        meets_pinned || (begin < (to + page - 1) / page * page && end > from / page * page);
  }
  return meets_pinned ? HostRange::part_pinned : HostRange::pageable;
}

std::vector<Queue*> all_queues() {
  std::scoped_lock const lock{runtime().mutex};
  return {runtime().queues.begin(), runtime().queues.end()};
}

Queue& queue_of(CUstream_st* stream) {
  return stream == nullptr ? default_queue() : *reinterpret_cast<Queue*>(stream);
}

void synchronize_all() {
  default_queue().synchronize();
  for (Queue* const queue : all_queues()) {
    queue->synchronize();
  }
}

int device_count() {
  char const* const text = std::getenv("CUDA_ON_CPU_DEVICES");
  return text == nullptr ? 1 : std::atoi(text);
}

/// Whether its devices are slices of one GPU by MIG.
bool has_slices() {
  return std::getenv("CUDA_ON_CPU_MIG") != nullptr;
}

/// Version of CUDA that the driver knows; 0: there is none.
int driver_version() {
  char const* const text = std::getenv("CUDA_ON_CPU_DRIVER");
  return text == nullptr ? CUDART_VERSION : std::atoi(text);
}

/// Ten times the compute capability. One whose blocks have the least shared memory: what runs here
/// runs on all.
int capability() {
  char const* const text = std::getenv("CUDA_ON_CPU_CAPABILITY");
  return text == nullptr ? 86 : static_cast<int>(std::strtod(text, nullptr) * 10 + 0.5);
}

/// Dynamic shared memory of a block, as NVIDIA's table of technical specifications has it.
int most_shared_bytes() {
  switch (capability()) {
    case 70:
      return 96 * 1024;
    case 75:
      return 64 * 1024;
    case 80:
    case 87:
      return 163 * 1024;
    case 86:
    case 89:
    case 120:
      return 99 * 1024;
    default:
      return 227 * 1024;
  }
}

/// What of host memory may be pinned at a time.
Bytes most_pinned() {
  char const* const text = std::getenv("CUDA_ON_CPU_PINNED");
  return text == nullptr ? std::numeric_limits<Bytes>::max() : offstage::parse_bytes(text);
}

/// Device memory that other processes have.
Bytes bytes_of_others() {
  char const* const text = std::getenv("CUDA_ON_CPU_OTHERS");
  return text == nullptr ? 0 : offstage::parse_bytes(text);
}

/// Of a device. A process knows what it has taken itself alone, as if it were alone.
Bytes total_bytes() {
  char const* const text = std::getenv("CUDA_ON_CPU_MEMORY");
  return text == nullptr ? 4 * GiB : offstage::parse_bytes(text);
}

thread_local cudaError_t last_error = cudaSuccess;
cudaError_t failed(cudaError_t code) {
  last_error = code;
  return code;
}

/// Of a call that has nothing to say itself.
cudaError_t so_far() {
  return fault().error;
}

}  // namespace

void enqueue(CUstream_st* stream, std::function<void()> work) {
  queue_of(stream).add(std::move(work));
}

void take(Bytes size) {
  std::scoped_lock const lock{runtime().mutex};
  runtime().used += size;
}

int begin_launch(dim3 blocks, dim3 threads, std::size_t shared_bytes) {
  std::size_t const count = std::size_t{threads.x} * threads.y * threads.z;
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0 || blocks.y > 65535 || blocks.z > 65535 ||
      count == 0 || count > 1024 || threads.z > 64) {
    return cudaErrorInvalidConfiguration;
  }
  return shared_bytes > static_cast<std::size_t>(most_shared_bytes()) ? cudaErrorInvalidValue
                                                                      : so_far();
}

void run_kernel(std::function<void()> const& kernel) {
  if (++fault().ran == fault().failing) {
    fault().error = cudaErrorIllegalAddress;
  }
  if (fault().error == cudaSuccess) {
    kernel();
  }
}

void refuse_product() noexcept {
  ++fault().refused_products;
}
std::int64_t refused_products() noexcept {
  return fault().refused_products;
}

void break_kernel(std::int64_t number) {
  synchronize_all();
  fault().error = cudaSuccess;
  fault().failing = number == 0 ? 0 : fault().ran + number;
}

}  // namespace offstage::cuda_on_cpu

using namespace offstage::cuda_on_cpu;
using offstage::Bytes;

struct CUevent_st {
  std::mutex mutex;
  std::shared_ptr<Point> last;  ///< null: never recorded, which counts as reached
};

namespace {

std::shared_ptr<Point> last_point(cudaEvent_t event) {
  std::scoped_lock const lock{event->mutex};
  return event->last;
}

}  // namespace

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version();
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  if (driver_version() < CUDART_VERSION / 1000 * 1000) {
    return failed(cudaErrorInsufficientDriver);
  }
  return *count > 0 ? cudaSuccess : failed(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  return device >= 0 && device < device_count() ? cudaSuccess : failed(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "CUDA on the CPU%s",
                has_slices() ? " MIG 1g.5gb" : "");
  properties->uuid.bytes[0] = static_cast<char>(device);
  properties->major = capability() / 10;
  properties->minor = capability() % 10;
  properties->sharedMemPerBlockOptin = static_cast<std::size_t>(most_shared_bytes());
  properties->multiProcessorCount = 2;
  properties->totalGlobalMem = static_cast<std::size_t>(total_bytes());
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  *value = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? most_shared_bytes()
           : attribute == cudaDevAttrComputeCapabilityMajor     ? capability() / 10
           : attribute == cudaDevAttrComputeCapabilityMinor     ? capability() % 10
                                                                : 2;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0",
                has_slices() ? 1 : device + 1);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  std::scoped_lock const lock{runtime().mutex};
  if (std::getenv("CUDA_ON_CPU_BUSY") != nullptr) {
    return failed(cudaErrorDevicesUnavailable);
  }
  *free_bytes = static_cast<std::size_t>(total_bytes() - bytes_of_others() - runtime().used);
  *total = static_cast<std::size_t>(total_bytes());
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t size) {
  std::scoped_lock const lock{runtime().mutex};
  auto const bytes = static_cast<Bytes>(size);
  if (bytes > total_bytes() - runtime().used) {
    return failed(cudaErrorMemoryAllocation);
  }
  // Of its own size, so that AddressSanitizer sees what goes beyond it.
  if (posix_memalign(memory, 256, std::max<std::size_t>(size, 1)) != 0) {
    return failed(cudaErrorMemoryAllocation);
  }
  std::memset(*memory, 0xFF, size);  // NaNs: what reads them before they are written shows
  runtime().allocated[*memory] = bytes;
  runtime().used += bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  synchronize_all();
  std::scoped_lock const lock{runtime().mutex};
  auto const found = runtime().allocated.find(memory);
  if (memory == nullptr) {
    return cudaSuccess;
  }
  if (found == runtime().allocated.end()) {
    return failed(cudaErrorInvalidValue);
  }
  runtime().used -= found->second;
  runtime().allocated.erase(found);
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, std::size_t size, unsigned /*flags*/) {
  auto* const begin = static_cast<std::byte*>(memory);
  auto const bytes = static_cast<Bytes>(size);
  std::scoped_lock const lock{runtime().mutex};
  Bytes pinned = 0;
  for (auto const& [other, length] : runtime().pinned) {
    if (begin < other + length && other < begin + bytes) {
      return failed(cudaErrorHostMemoryAlreadyRegistered);
    }
    pinned += length;
  }
  if (bytes > most_pinned() - pinned) {
    return failed(cudaErrorMemoryAllocation);
  }
  runtime().pinned[begin] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  std::scoped_lock const lock{runtime().mutex};
  return runtime().pinned.erase(static_cast<std::byte*>(memory)) == 1
             ? cudaSuccess
             : failed(cudaErrorHostMemoryNotRegistered);
}

// As on GPUs of today.
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = greatest_priority;
  return cudaSuccess;
}
// Each stream has a thread, whatever its priority, which is only remembered; beyond the range it is
// the nearest.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned /*flags*/, int priority) {
  auto* const queue = new Queue;
  queue->priority = std::clamp(priority, greatest_priority, 0);
  *stream = reinterpret_cast<cudaStream_t>(queue);
  std::scoped_lock const lock{runtime().mutex};
  runtime().queues.insert(queue);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = queue_of(stream).priority;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  queue_of(stream).synchronize();
  return so_far();
}
cudaError_t cudaDeviceSynchronize() {
  synchronize_all();
  return so_far();
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  auto* const queue = reinterpret_cast<Queue*>(stream);
  {
    std::scoped_lock const lock{runtime().mutex};
    runtime().queues.erase(queue);
  }
  delete queue;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  auto const point = std::make_shared<Point>();
  {
    std::scoped_lock const lock{event->mutex};
    event->last = point;
  }
  queue_of(stream).add([point] { point->reach(); });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (auto const point = last_point(event)) {
    point->wait();
  }
  return so_far();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  if (auto const point = last_point(event)) {
    queue_of(stream).add([point] { point->wait(); });
  }
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  auto const from = last_point(begin);
  auto const to = last_point(end);
  from->wait();
  to->wait();
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, void const* pointer) {
  bool const pinned = host_range(pointer, 1) == HostRange::pinned;
  *attributes = {.type = pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered};
  return cudaSuccess;
}

// As CUDA does it: what is not pinned is read before the call returns, or there when it does.
cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  Queue& queue = queue_of(stream);
  bool const to_host = kind == cudaMemcpyDeviceToHost;
  auto const host = to_host || kind == cudaMemcpyHostToDevice
                        ? host_range(to_host ? to : from, size)
                        : HostRange::pinned;
  if (host == HostRange::part_pinned) {
    return failed(cudaErrorInvalidValue);
  }
  auto const* const bytes = static_cast<std::byte const*>(from);
  auto* const target = static_cast<std::byte*>(to);
  if (host == HostRange::pageable && !to_host) {
    std::vector<std::byte> staged(bytes, bytes + size);
    queue.add([target, staged = std::move(staged)] { std::ranges::copy(staged, target); });
    return cudaSuccess;
  }
  queue.add([=] { std::copy_n(bytes, size, target); });
  if (host == HostRange::pageable) {
    queue.synchronize();
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, void const* from, std::size_t size, cudaMemcpyKind kind) {
  auto const error = cudaMemcpyAsync(to, from, size, kind, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t size, cudaStream_t stream) {
  queue_of(stream).add([=] { std::memset(memory, value, size); });
  return cudaSuccess;
}

// Kernels have no names here.
cudaError_t cudaFuncGetName(char const** name, void const* /*kernel*/) {
  *name = "_ZN8offstage7kernels4cuda6kernelEv";
  return so_far();
}
cudaError_t cudaGetLastError() {
  auto const last = std::exchange(last_error, cudaSuccess);
  return last == cudaSuccess ? so_far() : last;
}
char const* cudaGetErrorString(cudaError_t code) {
  switch (code) {
    case cudaSuccess:
      return "no error";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    default:
      return "an error of cuda_on_cpu";
  }
}

// What cuDNN's frontend would ask for, if cuDNN could compute here.
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* /*mode*/) {
  return failed(cudaErrorNotSupported);
}
#if CUDART_VERSION >= 12080
cudaError_t cudaGetDriverEntryPointByVersion(char const* /*name*/, void** /*function*/,
                                             unsigned /*version*/, unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* /*result*/) {
  return failed(cudaErrorNotSupported);
}
#else
cudaError_t cudaGetDriverEntryPoint(char const* /*name*/, void** /*function*/,
                                    unsigned long long /*flags*/,
                                    cudaDriverEntryPointQueryResult* /*result*/) {
  return failed(cudaErrorNotSupported);
}
#endif

}  // extern "C"
