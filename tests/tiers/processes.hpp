#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <utility>
#include <vector>

namespace offstage::tiers {

/// A T, all zeros at first, that forked processes share.
template <class T>
class Shared {
 public:
  Shared()
      : memory_{
            mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)} {
    if (memory_ == MAP_FAILED) {
      throw std::bad_alloc{};
    }
  }
  ~Shared() { munmap(memory_, sizeof(T)); }
  Shared(Shared const&) = delete;
  Shared& operator=(Shared const&) = delete;

  T* operator->() const { return static_cast<T*>(memory_); }
  T& operator*() const { return *static_cast<T*>(memory_); }

 private:
  void* memory_;
};

/// Processes that run a part of a test. One that hangs is ended, and its test fails.
class Processes {
 public:
  Processes() = default;
  ~Processes() { join(); }
  Processes(Processes const&) = delete;
  Processes& operator=(Processes const&) = delete;

  /// `work()` in a new process, which ends when it returns; it must not throw.
  template <class Work>
  void start(Work&& work) {
    pid_t const child = fork();
    if (child == 0) {
      alarm(60);
      std::forward<Work>(work)();
      _exit(0);
    }
    ASSERT_GT(child, 0);
    children_.push_back(child);
  }
  void join() {
    for (pid_t const child : std::exchange(children_, {})) {
      int status = -1;
      waitpid(child, &status, 0);
      EXPECT_EQ(status, 0) << "a process did not end well";
    }
  }

 private:
  std::vector<pid_t> children_;
};

/// Until `condition()`; a test that waits in vain is ended by its time limit.
template <class Condition>
void wait_until(Condition const& condition) {
  while (!condition()) {
    usleep(200);
  }
}

}  // namespace offstage::tiers
