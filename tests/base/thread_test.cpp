#include "base/thread.hpp"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <string>

#include "base/stopwatch.hpp"

namespace offstage {
namespace {

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

TEST(Stopwatch, LapsAddUp) {
  Stopwatch watch;
  Seconds const first = watch.lap();
  EXPECT_GE(first.count(), 0.0);
  EXPECT_GE(watch.elapsed().count(), 0.0);
}

}  // namespace
}  // namespace offstage
