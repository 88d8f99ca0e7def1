#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <queue>

namespace offstage::update {

/// Lets worker threads have work done by the one thread that owns the OpenMP team, in order of
/// arrival.
/// Threads: any; one thread calls serve.
class ComputeLane {
 public:
  /// `callers`: pieces of work, or threads with any number of them, that end with leave.
  explicit ComputeLane(std::int64_t callers) : callers_{callers} {}

  /// Has the serving thread run `work` and blocks until it has. Rethrows what `work` throws.
  void run(std::function<void()> work);
  /// Nobody will serve: run throws `error`, also where it waits already.
  void refuse(std::exception_ptr error) noexcept;
  /// One caller calls run no more. Every caller must say so, however it ends.
  void leave() noexcept;
  /// Runs work as it arrives; returns when every caller has left.
  void serve();

 private:
  struct Item {
    std::function<void()> work;
    std::exception_ptr error;
    bool done = false;
  };

  std::mutex mutex_;  ///< guards all below and the items' `done`
  std::condition_variable arrived_;
  std::condition_variable finished_;
  std::queue<Item*> items_;
  std::int64_t callers_;
  std::exception_ptr refused_;
};

}  // namespace offstage::update
