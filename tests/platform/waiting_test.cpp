#include "platform/cpu/waiting.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "platform/cpu/affinity.hpp"

namespace offstage::cpu {
namespace {

/// Three threads that want one core for a third of a second wait for two thirds of one, together.
TEST(WaitedForCores, CountsThreadsThatShareACore) {
  auto const before = waited_for_cores();
  if (!before) {
    GTEST_SKIP() << "this kernel does not count it";
  }
  int const core = allowed_cpus().front();
  auto const end = std::chrono::steady_clock::now() + std::chrono::milliseconds{300};
  std::atomic<int> done{0};
  std::atomic<bool> leave{false};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<unsigned>(core), &set);
      sched_setaffinity(0, sizeof(set), &set);
      while (std::chrono::steady_clock::now() < end) {
      }
      ++done;
      leave.wait(false);  // the kernel forgets a thread that has ended
    });
  }
  while (done < 3) {
    std::this_thread::yield();
  }
  Seconds const waited = *waited_for_cores() - *before;
  leave = true;
  leave.notify_all();
  EXPECT_GT(waited.count(), 0.3) << "2 * 0.3 s, and whatever else goes on here";
}

}  // namespace
}  // namespace offstage::cpu
