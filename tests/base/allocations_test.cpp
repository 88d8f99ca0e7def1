// What threads do where memory has ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/failing_allocations.hpp"
#include "base/log.hpp"
#include "base/thread.hpp"
#include "base/watch.hpp"

namespace offstage {
namespace {

TEST(FailingAllocations, FailInTurnUntilNoneIsLeft) {
  int rounds = 0;
  auto const runs = starve([&] {
    ++rounds;
    std::vector<std::string> const texts(3, std::string(100, 'x'));
  });
  EXPECT_EQ(runs.size(), 5U);
  EXPECT_EQ(rounds, 7) << "one with memory, five without, one that needed none";
  for (StarvedRun const& run : runs) {
    EXPECT_EQ(run.end, StarvedRun::End::no_memory);
    EXPECT_EQ(run.more_descriptors, 0);
  }
}

TEST(LogWithoutMemory, LeavesALineOut) {
  ::testing::internal::CaptureStderr();
  std::string const name(300, 'x');
  EXPECT_TRUE(starve([&]() noexcept { log::warning("{} {}", name, 7); }).empty());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("xxx 7\n"));
}

// glibc ends a process that cannot register a destructor of a thread's.
TEST(WatchWithoutMemory, AThreadWaitsUnseenAndIsSeenAgainLater) {
  std::vector<std::string> seen;
  {
    NamedThread const thread{"starved", [&] {
                               {
                                 FailingAllocations const failing{1, 1'000'000};
                                 Waiting const waiting{"memory"};
                                 made_progress();
                               }
                               Waiting const waiting{"nothing"};
                               for (ThreadState const& state : thread_states()) {
                                 seen.push_back(state.thread + " in " + state.what);
                               }
                             }};
  }
  EXPECT_THAT(seen, ::testing::Contains("starved in nothing"));
  for (ThreadState const& state : thread_states()) {
    EXPECT_NE(state.thread, "starved");
  }
}

}  // namespace
}  // namespace offstage
