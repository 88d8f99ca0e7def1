#include "update/compute_lane.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/thread.hpp"

namespace offstage::update {
namespace {

TEST(ComputeLane, RunsEverythingOnTheServingThread) {
  constexpr int workers = 4;
  ComputeLane lane{workers};
  auto const server = std::this_thread::get_id();
  int count = 0;  // of the serving thread alone
  bool elsewhere = false;
  std::vector<NamedThread> threads;
  for (int w = 0; w < workers; ++w) {
    threads.emplace_back("worker", [&] {
      for (int i = 0; i < 100; ++i) {
        lane.run([&] {
          ++count;
          elsewhere = elsewhere || std::this_thread::get_id() != server;
        });
      }
      lane.leave();
    });
  }
  lane.serve();
  EXPECT_EQ(count, 400);
  EXPECT_FALSE(elsewhere);
}

TEST(ComputeLane, HandsErrorsBackToTheWorker) {
  ComputeLane lane{1};
  std::string caught;
  NamedThread worker{"worker", [&] {
                       try {
                         lane.run([] { throw std::runtime_error{"broken"}; });
                       } catch (std::runtime_error const& error) {
                         caught = error.what();
                       }
                       lane.leave();
                     }};
  lane.serve();
  worker.join();
  EXPECT_EQ(caught, "broken");
}

}  // namespace
}  // namespace offstage::update
