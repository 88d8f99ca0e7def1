#include "update/compute_lane.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <exception>
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

TEST(ComputeLane, ThrowsWhereNobodyWillServe) {
  ComputeLane lane{2};
  auto const refused = [&] {
    try {
      lane.run([] { FAIL() << "somebody serves"; });
    } catch (std::runtime_error const& error) {
      return std::string{error.what()};
    }
    return std::string{};
  };
  std::string first;
  NamedThread worker{"worker", [&] { first = refused(); }};
  std::this_thread::sleep_for(std::chrono::milliseconds{20});  // most often it waits by now
  lane.refuse(std::make_exception_ptr(std::runtime_error{"no thread"}));
  worker.join();
  EXPECT_EQ(first, "no thread");
  EXPECT_EQ(refused(), "no thread");
}

}  // namespace
}  // namespace offstage::update
