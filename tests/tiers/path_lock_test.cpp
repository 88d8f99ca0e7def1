#include "tiers/path_lock.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <vector>

#include "base/thread.hpp"

namespace offstage::tiers {
namespace {

TEST(PathLock, LetsOneInAtATime) {
  PathLock path;
  std::int64_t count = 0;
  {
    std::vector<NamedThread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back("adder", [&] {
        for (int i = 0; i < 2000; ++i) {
          std::scoped_lock const lock{path};
          count = count + 1;
        }
      });
    }
  }
  EXPECT_EQ(count, 8000);
}

TEST(PathLock, ServesEveryoneWhileOneComesBackAtOnce) {
  // With an unfair lock the thread that releases it may take it again for ever.
  PathLock path;
  bool done = false;
  NamedThread greedy{"greedy", [&] {
                       for (;;) {
                         std::scoped_lock const lock{path};
                         if (done) {
                           return;
                         }
                       }
                     }};
  for (int i = 0; i < 500; ++i) {
    std::scoped_lock const lock{path};
  }
  std::scoped_lock const lock{path};
  done = true;
}

}  // namespace
}  // namespace offstage::tiers
