#include "base/thread.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <cerrno>
#include <latch>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "limits.hpp"

namespace offstage {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(NamedThread, CarriesItsNameCutToWhatLinuxTakes) {
  std::array<char, 32> name{};
  NamedThread thread{"update worker 12",
                     [&] { pthread_getname_np(pthread_self(), name.data(), name.size()); }};
  thread.join();
  EXPECT_EQ(std::string{name.data()}, "update worker 1");
}

TEST(NamedThread, DestructionWaitsForTheEnd) {
  int done = 0;
  {
    NamedThread const thread{"short", [&] { done = 1; }};
  }
  EXPECT_EQ(done, 1);
}

TEST(NamedThread, JoiningTwiceIsFine) {
  NamedThread thread{"short", [] {}};
  thread.join();
  thread.join();
}

/// More threads than there is room for the stacks of.
constexpr int too_many = 100;
constexpr Bytes little_room = 20 * MiB;

/// The error of the first thread that cannot start.
std::string error_of_too_many() {
  std::latch over{1};
  std::vector<NamedThread> threads;
  std::string message;
  try {
    while (threads.size() < too_many) {
      threads.emplace_back("save", [&] { over.wait(); });
    }
  } catch (IoError const& error) {
    EXPECT_EQ(error.error_number(), EAGAIN);
    message = error.what();
  }
  over.count_down();
  return message;
}

TEST(NamedThread, ThatCannotStartSaysSoAndNamesTheLimits) {
  if (address_space_is_the_sanitizers) {
    GTEST_SKIP() << "sanitizers map terabytes";
  }
  std::string message;
  {
    AddressSpace const room{little_room};
    message = error_of_too_many();
  }
  rlimit tasks{};
  getrlimit(RLIMIT_NPROC, &tasks);
  auto const most = tasks.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(tasks.rlim_cur);
  EXPECT_THAT(message, HasSubstr("cannot start the thread \"save\": Resource temporarily "
                                 "unavailable; raise ulimit -u (RLIMIT_NPROC is " +
                                 most + ") or the job's pids limit"));
  EXPECT_THAT(message, HasSubstr("ulimit -v (RLIMIT_AS is "));
  {
    Limit const data{RLIMIT_DATA, mapped_bytes() + little_room};
    message = error_of_too_many();
  }
  EXPECT_THAT(message, HasSubstr("ulimit -d (RLIMIT_DATA is "));
}

TEST(NamedThread, NamesALimitOfTheStackThatIsLarge) {
  rlimit stack{};
  getrlimit(RLIMIT_STACK, &stack);
  if (address_space_is_the_sanitizers || stack.rlim_max < static_cast<rlim_t>(64 * GiB)) {
    GTEST_SKIP() << "sanitizers map terabytes, or stacks cannot be so large";
  }
  AddressSpace const room{little_room};
  {
    Limit const usual{RLIMIT_STACK, 8 * MiB};
    EXPECT_THAT(error_of_too_many(), Not(HasSubstr("ulimit -s")));
  }
  Limit const large{RLIMIT_STACK, 64 * GiB};
  EXPECT_THAT(error_of_too_many(), HasSubstr("; or lower ulimit -s (RLIMIT_STACK is 64.0 GiB, "));
}

TEST(RequireThreads, HasThemAllAtOnceOrNone) {
  require_threads(-1, "none");
  require_threads(0, "none");
  require_threads(too_many, "many");
  if (address_space_is_the_sanitizers) {
    GTEST_SKIP() << "sanitizers map terabytes";
  }
  AddressSpace const room{little_room};
  EXPECT_THROW(require_threads(2 * too_many, "too many"), IoError);
}

TEST(Stopwatch, LapsAddUp) {
  Stopwatch watch;
  Seconds const first = watch.lap();
  EXPECT_GE(first.count(), 0.0);
  EXPECT_GE(watch.elapsed().count(), 0.0);
}

}  // namespace
}  // namespace offstage
