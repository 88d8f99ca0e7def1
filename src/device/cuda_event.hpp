#pragma once

#ifdef OFFSTAGE_HAVE_CUDA

#include <cuda_runtime_api.h>

#include <chrono>
#include <memory>
#include <mutex>

#include "device/device.hpp"

namespace offstage::device {

/// CUDA counts the devices for each thread; what a thread creates or launches is the current one's.
void make_current(int index);

/// A point that both clocks know, the device's and the host's.
class Origin {
 public:
  using Clock = std::chrono::steady_clock;
  /// Blocks until it has come. Of device `index`, the current one; `stream`: an idle one of it.
  Origin(int index, cudaStream_t stream);
  ~Origin();
  Origin(Origin const&) = delete;
  Origin& operator=(Origin const&) = delete;

  [[nodiscard]] Clock::time_point time() const noexcept { return time_; }
  /// When a later event, which has come, came.
  [[nodiscard]] Clock::time_point when(cudaEvent_t event) const;

 private:
  explicit Origin(int index) : index_{index} {}

  int index_;
  cudaEvent_t event_{};
  cudaEvent_t other_{};  ///< event of an attempt that was not kept
  Clock::time_point time_;
};

/// Clock of a device. Threads: any.
class CudaClock {
 public:
  explicit CudaClock(int index) : index_{index} {}
  ~CudaClock();
  CudaClock(CudaClock const&) = delete;
  CudaClock& operator=(CudaClock const&) = delete;

  /// A point not long ago: CUDA gives times between events as floats, in milliseconds.
  [[nodiscard]] std::shared_ptr<Origin const> origin();

 private:
  int index_;
  std::mutex mutex_;  ///< guards all below
  cudaStream_t stream_{};
  std::shared_ptr<Origin const> origin_;
};

class CudaEvent final : public Event {
 public:
  /// Makes an event of device `index`, the current one. A thread without a current device would
  /// open device 0 by some of these calls.
  CudaEvent(int index, std::shared_ptr<Origin const> origin);
  ~CudaEvent() override;
  CudaEvent(CudaEvent const&) = delete;
  CudaEvent& operator=(CudaEvent const&) = delete;

  void wait() const override;
  [[nodiscard]] std::chrono::steady_clock::time_point when() const override;
  [[nodiscard]] cudaEvent_t native() const noexcept { return event_; }

 private:
  int index_;
  std::shared_ptr<Origin const> origin_;
  cudaEvent_t event_{};
};

}  // namespace offstage::device

#endif
