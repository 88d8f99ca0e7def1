#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

#include "base/thread.hpp"
#include "base/units.hpp"
#include "base/watch.hpp"

namespace offstage::update {

/// Ends the program, with what every thread is in, if nothing moves for so long: a deadlock is a
/// failure that says where, however long the test may take.
class StallWatch {
 public:
  explicit StallWatch(Seconds most = Seconds{30.0})
      : most_{most}, thread_{"stall-watch", [this] { watch(); }} {}
  ~StallWatch() {
    {
      std::scoped_lock const lock{mutex_};
      done_ = true;
    }
    changed_.notify_one();
  }
  StallWatch(StallWatch const&) = delete;
  StallWatch& operator=(StallWatch const&) = delete;

  /// What goes on now.
  void say(std::string what) {
    std::scoped_lock const lock{mutex_};
    what_ = std::move(what);
    made_progress();
  }

 private:
  void watch() {
    std::unique_lock lock{mutex_};
    while (!changed_.wait_for(lock, std::chrono::seconds{1}, [this] { return done_; })) {
      if (since_progress() > most_) {
        std::printf("hangs: %s\n", what_.c_str());
        for (ThreadState const& state : thread_states()) {
          std::printf("thread %s has been %.0f s in %s\n", state.thread.c_str(),
                      state.since.count(), state.what.c_str());
        }
        std::fflush(stdout);
        std::abort();
      }
    }
  }

  Seconds most_;
  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  bool done_ = false;
  std::string what_;
  NamedThread thread_;  ///< last: it uses all of the above
};

}  // namespace offstage::update
