#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

#include "base/thread.hpp"

namespace offstage::update {

/// Ends the program, saying what it did, if that takes too long: nothing may hang.
class Deadline {
 public:
  Deadline(std::chrono::seconds most, std::string what)
      : thread_{"deadline", [this, most, what = std::move(what)] {
                  std::unique_lock lock{mutex_};
                  if (!changed_.wait_for(lock, most, [this] { return done_; })) {
                    std::printf("hangs: %s\n", what.c_str());
                    std::fflush(stdout);
                    std::abort();
                  }
                }} {}
  ~Deadline() {
    {
      std::scoped_lock const lock{mutex_};
      done_ = true;
    }
    changed_.notify_one();
  }
  Deadline(Deadline const&) = delete;
  Deadline& operator=(Deadline const&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  NamedThread thread_;
};

}  // namespace offstage::update
