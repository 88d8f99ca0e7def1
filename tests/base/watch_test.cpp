#include "base/watch.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/stopwatch.hpp"
#include "base/thread.hpp"

namespace offstage {
namespace {

using ::testing::Contains;
using ::testing::Field;
using ::testing::Not;

auto named(std::string const& name) {
  return Field("thread", &ThreadState::thread, name);
}

ThreadState state_of(std::string const& name) {
  auto const states = thread_states();
  auto const found = std::ranges::find(states, name, &ThreadState::thread);
  return found == states.end() ? ThreadState{name, "not there", {}} : *found;
}

void sleep_for(Seconds time) {
  std::this_thread::sleep_for(time);
}

/// True if progress was made while `watch` ran.
bool progress_since(Stopwatch const& watch) {
  Seconds const idle = since_progress();  // first: time goes on in between
  return idle <= watch.elapsed();
}

TEST(Waiting, IsSeenWithItsDetailAndHowLong) {
  Waiting const waiting{"all_gather"};
  EXPECT_EQ(state_of("main").what, "all_gather");
  Waiting const inner{"a buffer for extent", 3};
  sleep_for(Seconds{0.01});
  ThreadState const state = state_of("main");
  EXPECT_EQ(state.what, "a buffer for extent 3 for all_gather");
  EXPECT_GE(state.since.count(), 0.01);
  EXPECT_LT(state.since.count(), 10.0);
}

TEST(Waiting, LeavesWhatIsAroundItWhenItEnds) {
  {
    Waiting const outer{"layer", 0};
    { Waiting const inner{"all_gather"}; }
    EXPECT_EQ(state_of("main").what, "layer 0");
  }
  EXPECT_EQ(state_of("main").what, "running");
}

TEST(Waiting, NestsDeeperThanIsShown) {
  std::function<void(int)> const nest = [&](int more) {
    Waiting const waiting{"level", more};
    if (more > 0) {
      nest(more - 1);
    } else {
      EXPECT_THAT(state_of("main").what, ::testing::EndsWith("for level 20"));
    }
  };
  nest(20);
  EXPECT_EQ(state_of("main").what, "running");
}

TEST(Waiting, BeginningAndEndAreProgress) {
  sleep_for(Seconds{0.02});
  Stopwatch watch;
  {
    Waiting const waiting{"a turn"};
    EXPECT_TRUE(progress_since(watch));
    sleep_for(Seconds{0.02});
    EXPECT_GE(since_progress().count(), 0.02);
    watch = {};
  }
  EXPECT_TRUE(progress_since(watch));
}

TEST(Watch, ProgressWithoutAWaitCounts) {
  made_progress();
  sleep_for(Seconds{0.02});
  EXPECT_GE(since_progress().count(), 0.02);
  Stopwatch const watch;
  made_progress();
  EXPECT_TRUE(progress_since(watch));
}

TEST(Watch, ProgressOfAThreadThatEndedStillCounts) {
  sleep_for(Seconds{0.02});
  Stopwatch const watch;
  NamedThread{"short", made_progress}.join();
  EXPECT_TRUE(progress_since(watch));
}

TEST(Watch, KnowsThreadsByTheirNamesWhileTheyRun) {
  std::promise<void> waits;
  std::promise<void> go;
  NamedThread thread{"update-0", [&] {
                       Waiting const waiting{"a lease of extent", 7};
                       waits.set_value();
                       go.get_future().wait();
                     }};
  waits.get_future().wait();
  EXPECT_EQ(state_of("update-0").what, "a lease of extent 7");
  go.set_value();
  thread.join();
  EXPECT_THAT(thread_states(), Not(Contains(named("update-0"))));
}

TEST(Watch, HandsTheRecordsOfEndedThreadsOn) {
  for (int i = 0; i < 100; ++i) {
    NamedThread{"worker", [] { Waiting const waiting{"a turn"}; }}.join();
  }
  NamedThread{"fresh",
              [] {
                made_progress();
                EXPECT_EQ(state_of("fresh").what, "running");
                EXPECT_THAT(thread_states(), Not(Contains(named("worker"))));
              }}
      .join();
}

TEST(Watch, NeverMixesTwoWaitsOfAThread) {
  std::atomic<bool> stop = false;
  std::vector<std::unique_ptr<NamedThread>> threads;
  for (int i = 0; i < 3; ++i) {
    threads.push_back(std::make_unique<NamedThread>("busy", [&] {
      while (!stop) {
        { Waiting const one{"one", 1}; }
        {
          Waiting const two{"two", 2};
          Waiting const three{"three", 3};
        }
      }
    }));
  }
  auto const allowed =
      ::testing::AnyOf("running", "one 1", "two 2", "three 3 for two 2", "not there");
  // No assertion that returns: the threads wait for their end.
  for (int i = 0; i < 2000 && !::testing::Test::HasFailure(); ++i) {
    for (ThreadState const& state : thread_states()) {
      if (state.thread == "busy") {
        EXPECT_THAT(state.what, allowed);
      }
    }
    EXPECT_LT(since_progress().count(), 30.0);
    // Threads come and go meanwhile.
    if (i % 100 == 0) {
      NamedThread{"guest", [] { Waiting const waiting{"one", 1}; }}.join();
    }
  }
  stop = true;
  threads.clear();
  EXPECT_THAT(thread_states(), Not(Contains(named("busy"))));
}

TEST(WaitingForRanks, AddsUpForItsThreadAlone) {
  Seconds const before = waited_for_ranks();
  Stopwatch const watch;
  for (int i = 0; i < 2; ++i) {
    WaitingForRanks const waiting{"all_gather", i};
    EXPECT_EQ(state_of("main").what, "all_gather " + std::to_string(i));
    sleep_for(Seconds{0.01});
  }
  Seconds const waited = waited_for_ranks() - before;
  EXPECT_GE(waited, Seconds{0.02});
  EXPECT_LE(waited, watch.elapsed());
  EXPECT_EQ(std::async(std::launch::async, waited_for_ranks).get(), Seconds{});
}

class Told final : public RankWaits {
 public:
  void waited(std::string const& what, std::chrono::steady_clock::time_point begin,
              std::chrono::steady_clock::time_point end) noexcept override {
    all.push_back(what);
    in_order = in_order && begin <= end;
  }
  std::vector<std::string> all;
  bool in_order = true;
};

TEST(WaitingForRanks, IsToldWithWhatItIsForToWhoeverWantsToKnow) {
  Told told;
  { WaitingForRanks const before{"barrier"}; }
  tell_of_rank_waits(&told);
  {
    Waiting const layer{"layer", 3};
    WaitingForRanks const waiting{"all_gather"};
  }
  { Waiting const file{"file"}; }
  std::async(std::launch::async, [] { WaitingForRanks const other{"barrier"}; }).get();
  tell_of_rank_waits(nullptr);
  { WaitingForRanks const after{"barrier"}; }
  EXPECT_EQ(told.all, std::vector<std::string>{"all_gather for layer 3"});
  EXPECT_TRUE(told.in_order);
}

}  // namespace
}  // namespace offstage
