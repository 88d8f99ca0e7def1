#include "plan/virtual_time.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/error.hpp"

namespace offstage::plan {
namespace {

TEST(VirtualTime, AServerServesInOrderOfArrival) {
  VirtualTime time;
  Server server{time};
  std::vector<double> ends;
  auto const work = [&](double seconds) -> Task {
    co_await server.serve(seconds);
    ends.push_back(time.now());
  };
  time.start(work(2.0));
  time.start(work(1.0));
  time.run();
  EXPECT_EQ(ends, (std::vector<double>{2.0, 3.0}));
  EXPECT_EQ(server.busy(), 3.0);
}

TEST(VirtualTime, WhoWaitsForEverIsAnError) {
  VirtualTime time;
  Point never{time};
  auto const work = [&]() -> Task { co_await never; };
  time.start(work());
  EXPECT_THROW(time.run(), PreconditionError);
}

TEST(VirtualTime, TokensAreLentInOrder) {
  VirtualTime time;
  Tokens tokens{time, 1};
  Server server{time};
  std::vector<int> order;
  auto const work = [&](int who) -> Task {
    co_await tokens.take();
    co_await server.serve(1.0);
    order.push_back(who);
    tokens.give();
  };
  for (int who = 0; who < 3; ++who) {
    time.start(work(who));
  }
  time.run();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(time.now(), 3.0);
}

TEST(VirtualTime, FreesTasksThatHaveEnded) {
  VirtualTime time;
  std::size_t most = 0;
  auto const work = [&](double seconds) -> Task {
    co_await Server{time}.serve(seconds);
    most = std::max(most, time.running());
  };
  auto const start = [&]() -> Task {
    Server server{time};
    for (int i = 0; i < 1000; ++i) {
      time.start(work(0.5));
      co_await server.serve(1.0);
    }
  };
  time.start(start());
  time.run();
  EXPECT_EQ(most, 2U);
  EXPECT_EQ(time.running(), 0U);
}

TEST(VirtualTime, AnErrorOfATaskComesOut) {
  VirtualTime time;
  auto const work = []() -> Task {
    throw UsageError{"mine"};
    co_return;
  };
  time.start(work());
  EXPECT_THROW(time.run(), UsageError);
}

}  // namespace
}  // namespace offstage::plan
