#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <queue>

namespace offstage::update {

/// Lets worker threads have work done by the one thread that owns the OpenMP team, in order of
/// arrival.
/// Threads: `workers` threads call run and then leave; one thread calls serve.
class ComputeLane {
 public:
  explicit ComputeLane(int workers) : workers_{workers} {}

  /// Has the serving thread run `work` and blocks until it has. Rethrows what `work` throws.
  void run(std::function<void()> work);
  /// This worker calls run no more. Every worker must say so, however it ends.
  void leave() noexcept;
  /// Runs work as it arrives; returns when every worker has left.
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
  int workers_;
};

}  // namespace offstage::update
