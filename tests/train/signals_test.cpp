#include "train/saves/signals.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "base/error.hpp"

namespace offstage::train {
namespace {

/// How a child process that does `work` ends: its exit code, or minus the signal that killed it.
int outcome_of(std::function<void()> const& work) {
  pid_t const child = ::fork();
  if (child == 0) {
    work();
    ::_exit(42);
  }
  int status{};
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(StopSignals, NothingCameAtFirst) {
  StopSignals const signals;
  EXPECT_EQ(signals.received(), 0);
}

TEST(StopSignals, TheFirstSignalIsKept) {
  std::signal(SIGHUP, SIG_DFL);
  for (int number : {SIGUSR1, SIGUSR2, SIGTERM, SIGHUP, SIGXCPU}) {
    StopSignals const signals;
    std::raise(number);
    EXPECT_EQ(signals.received(), number);
  }
}

TEST(StopSignals, ALostTerminalThatWasIgnoredStaysSo) {
  std::signal(SIGHUP, SIG_IGN);  // as nohup does
  {
    StopSignals const signals;
    std::raise(SIGHUP);
    EXPECT_EQ(signals.received(), 0);
  }
  std::signal(SIGHUP, SIG_DFL);
}

TEST(StopSignals, TheSameSignalAtOnceCountsOnce) {
  StopSignals const signals;
  std::raise(SIGTERM);
  std::raise(SIGTERM);
  std::raise(SIGTERM);
  EXPECT_EQ(signals.received(), SIGTERM);
}

/// Longer than the time in which the same signal counts once.
void wait_for_the_next_to_count() {
  std::this_thread::sleep_for(std::chrono::milliseconds{2100});
}

TEST(StopSignals, AnotherSignalAndThoseThatOthersRepeatAskForTheSameAtAnyTime) {
  EXPECT_EQ(outcome_of([] {
              std::signal(SIGHUP, SIG_DFL);
              StopSignals const signals;
              std::raise(SIGUSR1);
              for (int number : {SIGTERM, SIGHUP, SIGXCPU}) {
                std::raise(number);
              }
              wait_for_the_next_to_count();
              for (int number : {SIGTERM, SIGHUP, SIGXCPU}) {
                std::raise(number);
              }
              std::raise(SIGINT);
              ::_exit(signals.received() == SIGUSR1 ? 42 : 1);
            }),
            42);
  EXPECT_EQ(outcome_of([] {
              StopSignals const signals;
              std::raise(SIGTERM);
              wait_for_the_next_to_count();
              std::raise(SIGUSR1);
            }),
            42);
}

TEST(StopSignals, TheSameSignalLaterEndsTheProcess) {
  EXPECT_EQ(outcome_of([] {
              StopSignals const signals;
              std::raise(SIGUSR1);
              wait_for_the_next_to_count();
              std::raise(SIGUSR1);
            }),
            1);
}

TEST(StopSignals, TheSameSignalLaterEndsTheProcessAlsoIfAnotherCameFirst) {
  EXPECT_EQ(outcome_of([] {
              StopSignals const signals;
              std::raise(SIGTERM);
              std::raise(SIGINT);
              wait_for_the_next_to_count();
              std::raise(SIGINT);
            }),
            1);
}

TEST(StopSignals, AfterIgnoreNothingHappens) {
  EXPECT_EQ(outcome_of([] {
              StopSignals signals;
              std::raise(SIGUSR1);
              signals.ignore();
              std::raise(SIGTERM);
              std::raise(SIGUSR1);
              if (signals.received() != SIGUSR1) {
                ::_exit(1);
              }
            }),
            42);
}

TEST(StopSignals, AProcessThatGoesOnIsNotedAndAsksForNothing) {
  StopSignals const signals;
  EXPECT_FALSE(signals.since_continued());
  std::raise(SIGCONT);
  EXPECT_TRUE(signals.since_continued());
  EXPECT_EQ(signals.received(), 0);
}

TEST(StopSignals, TheHandlersBeforeComeBack) {
  EXPECT_EQ(outcome_of([] {
              { StopSignals const signals; }
              std::raise(SIGTERM);
            }),
            -SIGTERM);
}

TEST(StopSignals, ThereIsOneAtATime) {
  StopSignals const signals;
  EXPECT_THROW(StopSignals{}, PreconditionError);
}

}  // namespace
}  // namespace offstage::train
