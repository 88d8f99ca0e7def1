#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <queue>
#include <utility>

#include "base/thread.hpp"
#include "base/watch.hpp"

namespace offstage::update {

/// A thread that handles items in order of arrival while the thread that puts them goes on.
///
/// Threads: one calls put, drain and stop; any calls rethrow.
/// Errors:  the first that `handle` throws is kept, and drain and rethrow throw it from then on.
///          An item that comes after it ends without being handled.
template <class Item>
class OrderedThread {
 public:
  /// Names of the thread, of what it waits for between items, and of what drain waits for.
  struct Names {
    char const* thread;
    char const* idle;
    char const* drain;
  };
  /// `handle`: called by the thread. It ends the item before it returns.
  OrderedThread(Names names, std::function<void(Item)> handle)
      : names_{names}, handle_{std::move(handle)}, thread_{names.thread, [this] { serve(); }} {}
  ~OrderedThread() { stop(); }
  OrderedThread(OrderedThread const&) = delete;
  OrderedThread& operator=(OrderedThread const&) = delete;

  void put(Item item) {
    {
      std::scoped_lock const lock{mutex_};
      items_.push(std::move(item));
    }
    arrived_.notify_one();
  }
  /// Blocks until no item is left here. Errors: what the thread met.
  void drain() {
    {
      Waiting const waiting{names_.drain};
      std::unique_lock lock{mutex_};
      ended_.wait(lock, [this] { return items_.empty() && !busy_; });
    }
    rethrow();
  }
  /// Throws what drain would throw now.
  void rethrow() const {
    std::scoped_lock const lock{mutex_};
    if (error_) {
      std::rethrow_exception(error_);
    }
  }
  /// Waits for the item in hand, if any. What waits ends without being handled. Only the destructor
  /// follows.
  void stop() noexcept {
    {
      std::scoped_lock const lock{mutex_};
      stop_ = true;
    }
    arrived_.notify_one();
    thread_.join();
    while (!items_.empty()) {
      items_.pop();
    }
  }

 private:
  void serve() {
    std::unique_lock lock{mutex_};
    for (;;) {
      {
        Waiting const waiting{names_.idle};
        arrived_.wait(lock, [this] { return stop_ || !items_.empty(); });
      }
      if (stop_) {
        return;
      }
      take_first(lock);
      ended_.notify_all();
    }
  }

  void take_first(std::unique_lock<std::mutex>& lock) {
    busy_ = true;
    std::exception_ptr error = error_;
    {
      Item item = std::move(items_.front());
      items_.pop();
      lock.unlock();
      if (!error) {
        try {
          handle_(std::move(item));
        } catch (...) {
          error = std::current_exception();
        }
      }
    }  // the item has ended before anyone hears of it
    lock.lock();
    busy_ = false;
    error_ = error;
  }

  Names names_;
  std::function<void(Item)> handle_;
  mutable std::mutex mutex_;  ///< guards all below but the thread
  std::condition_variable arrived_;
  std::condition_variable ended_;
  std::queue<Item> items_;
  bool busy_ = false;  ///< the thread has an item in hand
  bool stop_ = false;
  std::exception_ptr error_;
  NamedThread thread_;  ///< last: it uses all of the above
};

}  // namespace offstage::update
