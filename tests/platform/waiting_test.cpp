#include "platform/cpu/waiting.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <thread>
#include <vector>

#include "platform/cpu/affinity.hpp"

namespace offstage::cpu {
namespace {

/// Beside two other threads on one core this one gets a third of it.
TEST(WaitedForCore, CountsWhenOthersHaveTheCore) {
  auto const before = waited_for_core();
  if (!before) {
    GTEST_SKIP() << "this kernel does not count it";
  }
  cpu_set_t given;
  ASSERT_EQ(sched_getaffinity(0, sizeof(given), &given), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<unsigned>(allowed_cpus().front()), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);  // threads inherit it
  auto const end = std::chrono::steady_clock::now() + std::chrono::milliseconds{300};
  auto const work = [&] {
    while (std::chrono::steady_clock::now() < end) {
    }
  };
  {
    std::vector<std::jthread> others;
    others.emplace_back(work);
    others.emplace_back(work);
    work();
  }
  EXPECT_GT((*waited_for_core() - *before).count(), 0.1) << "0.2 s, or more if others run here";
  sched_setaffinity(0, sizeof(given), &given);
}

}  // namespace
}  // namespace offstage::cpu
