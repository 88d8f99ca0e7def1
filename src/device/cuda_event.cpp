#include "device/cuda_event.hpp"

#ifdef OFFSTAGE_HAVE_CUDA

#include <utility>

#include "base/watch.hpp"
#include "platform/cuda/check.hpp"

namespace offstage::device {

using cuda::check;

void make_current(int index) {
  check(cudaSetDevice(index));
}

// From the other one, so that events go where an attempt throws.
Origin::Origin(int index, cudaStream_t stream) : Origin{index} {
  constexpr int attempts = 8;
  constexpr auto close_enough = std::chrono::microseconds{20};
  // Waiting spins, a few microseconds: one that blocks would wake up late.
  check(cudaEventCreateWithFlags(&event_, cudaEventDefault));
  check(cudaEventCreateWithFlags(&other_, cudaEventDefault));
  // Between the event and the look at the clock a busy host may do something else: the quickest
  // attempt is kept.
  auto quickest = Clock::duration::max();
  for (int attempt = 0; attempt < attempts && quickest >= close_enough; ++attempt) {
    auto const before = Clock::now();
    check(cudaEventRecord(other_, stream));
    check(cudaEventSynchronize(other_));
    auto const after = Clock::now();
    if (after - before < quickest) {
      quickest = after - before;
      time_ = before + quickest / 2;
      std::swap(event_, other_);
    }
  }
}

Origin::~Origin() {
  static_cast<void>(cudaSetDevice(index_));
  static_cast<void>(cudaEventDestroy(event_));
  static_cast<void>(cudaEventDestroy(other_));
}

Origin::Clock::time_point Origin::when(cudaEvent_t event) const {
  make_current(index_);
  float milliseconds{};
  check(cudaEventElapsedTime(&milliseconds, event_, event));
  return time_ + std::chrono::duration_cast<Clock::duration>(
                     std::chrono::duration<float, std::milli>{milliseconds});
}

CudaClock::~CudaClock() {
  if (stream_ != nullptr) {
    static_cast<void>(cudaStreamDestroy(stream_));
  }
}

std::shared_ptr<Origin const> CudaClock::origin() {
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

CudaEvent::CudaEvent(int index, std::shared_ptr<Origin const> origin)
    : index_{index}, origin_{std::move(origin)} {
  // Blocking: who waits must not spin on a core that updates state.
  check(cudaEventCreateWithFlags(&event_, cudaEventBlockingSync));
}

CudaEvent::~CudaEvent() {
  static_cast<void>(cudaSetDevice(index_));
  static_cast<void>(cudaEventDestroy(event_));
}

void CudaEvent::wait() const {
  Waiting const waiting{"a device stream"};
  make_current(index_);  // the thread may be one that has called nothing of CUDA's yet
  check(cudaEventSynchronize(event_));
}

std::chrono::steady_clock::time_point CudaEvent::when() const {
  wait();
  return origin_->when(event_);
}

}  // namespace offstage::device

#endif
