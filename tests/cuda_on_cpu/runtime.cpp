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
namespace {

using Clock = std::chrono::steady_clock;

constexpr int greatest_priority = -5;
constexpr std::size_t most_shared_bytes = 227 * 1024;  // of compute capability 9.0

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

struct Runtime {
  std::mutex mutex;  ///< guards all below
  std::map<void*, Bytes> allocated;
  Bytes used{};
  std::map<std::byte*, Bytes> pinned;
  std::set<Queue*> queues;
};
Runtime& runtime() {
  static Runtime all;
  return all;
}
Queue& default_queue() {
  static Queue queue;
  return queue;
}

bool is_pinned(void const* memory, std::size_t size) {
  auto const* const begin = static_cast<std::byte const*>(memory);
  std::scoped_lock const lock{runtime().mutex};
  return std::ranges::any_of(runtime().pinned, [&](auto const& range) {
    return begin >= range.first && begin + size <= range.first + range.second;
  });
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

}  // namespace

void enqueue(CUstream_st* stream, std::function<void()> work) {
  queue_of(stream).add(std::move(work));
}

void take(Bytes size) {
  std::scoped_lock const lock{runtime().mutex};
  runtime().used += size;
}

void check_launch(dim3 blocks, dim3 threads, std::size_t shared_bytes) {
  std::size_t const count = std::size_t{threads.x} * threads.y * threads.z;
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0 || blocks.y > 65535 || blocks.z > 65535 ||
      count == 0 || count > 1024 || threads.z > 64 || shared_bytes > most_shared_bytes) {
    std::fprintf(stderr,
                 "cuda_on_cpu: no GPU takes %u x %u x %u blocks of %zu threads, %zu bytes\n",
                 blocks.x, blocks.y, blocks.z, count, shared_bytes);
    std::abort();
  }
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

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
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
  std::snprintf(properties->name, sizeof properties->name, "CUDA on the CPU");
  properties->uuid.bytes[0] = static_cast<char>(device);
  properties->major = 9;
  properties->multiProcessorCount = 2;
  properties->totalGlobalMem = static_cast<std::size_t>(total_bytes());
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr /*attribute*/, int /*device*/) {
  *value = 2;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0", device + 1);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  std::scoped_lock const lock{runtime().mutex};
  *free_bytes = static_cast<std::size_t>(total_bytes() - runtime().used);
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
  for (auto const& [other, length] : runtime().pinned) {
    if (begin < other + length && other < begin + bytes) {
      return failed(cudaErrorHostMemoryAlreadyRegistered);
    }
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
// Each stream has a thread, whatever its priority, which is only remembered; beyond the range it is the nearest.
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
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  synchronize_all();
  return cudaSuccess;
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
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  auto const point = last_point(event);
  if (!point) {
    return cudaSuccess;
  }
  std::scoped_lock const lock{point->mutex};
  return point->reached ? cudaSuccess : cudaErrorNotReady;
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

// As CUDA does it: what is not pinned is read before the call returns, or there when it does.
cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  Queue& queue = queue_of(stream);
  if (kind == cudaMemcpyHostToDevice && !is_pinned(from, size)) {
    auto const* const bytes = static_cast<std::byte const*>(from);
    queue.add([to, staged = std::vector<std::byte>(bytes, bytes + size)] {
      std::memcpy(to, staged.data(), staged.size());
    });
    return cudaSuccess;
  }
  queue.add([=] { std::memcpy(to, from, size); });
  if (kind == cudaMemcpyDeviceToHost && !is_pinned(to, size)) {
    queue.synchronize();
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, void const* from, std::size_t size, cudaMemcpyKind kind) {
  cudaMemcpyAsync(to, from, size, kind, nullptr);
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t size, cudaStream_t stream) {
  queue_of(stream).add([=] { std::memset(memory, value, size); });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, std::size_t size) {
  cudaMemsetAsync(memory, value, size, nullptr);
  return cudaStreamSynchronize(nullptr);
}

cudaError_t cudaFuncSetAttribute(void const* /*kernel*/, cudaFuncAttribute /*attribute*/,
                                 int /*value*/) {
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
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
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    default:
      return "an error of cuda_on_cpu";
  }
}

}  // extern "C"
