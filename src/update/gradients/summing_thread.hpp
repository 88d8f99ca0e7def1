#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>

#include "base/thread.hpp"
#include "update/gradients/arrival.hpp"

namespace offstage::update {

/// Waits for gradients that come to host memory and has them added, in order of arrival, by a
/// thread of its own ("gradient sums") while the calling thread gives the device its next work.
///
/// Threads: one calls the members. The thread's OpenMP teams are as large as those of the one that
/// makes it. Waiting: for streams, and for what the additions wait for. It gives memory back after
/// each gradient, whatever happens.
/// Errors:  the first is kept and thrown by drain and rethrow from then on; what comes after it is
///          not added.
class SummingThread {
 public:
  using Add = std::function<void(int layer, std::span<std::byte const> gradient)>;
  explicit SummingThread(Add add);
  ~SummingThread() { stop(); }
  SummingThread(SummingThread const&) = delete;
  SummingThread& operator=(SummingThread const&) = delete;

  void put(GradientArrival arrival);
  /// Blocks until all is added. Errors: what the thread met.
  void drain();
  /// Throws what drain would throw now.
  void rethrow() const;
  /// Waits for the gradient in hand, if any; what waits is not added. Nothing but the destructor
  /// follows.
  void stop() noexcept;

 private:
  void serve(int team);
  /// Returns false, and keeps the error, if the system does not start so many threads.
  [[nodiscard]] bool take_team(int size);
  /// Empty when the thread is to end.
  [[nodiscard]] std::optional<GradientArrival> next();

  Add add_;
  mutable std::mutex mutex_;  ///< guards all below
  std::condition_variable arrived_;
  std::condition_variable ended_;
  std::deque<GradientArrival> waiting_;
  bool busy_ = false;  ///< the thread has a gradient in hand
  bool stop_ = false;
  std::exception_ptr error_;
  NamedThread thread_;  // last: it uses all of the above
};

}  // namespace offstage::update
