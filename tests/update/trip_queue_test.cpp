#include "update/trip_queue.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "base/error.hpp"

namespace offstage::update {
namespace {

constexpr auto any = plan::TripOrder::any_reach;

std::vector<Trip> trips(std::vector<bool> const& on_device) {
  std::vector<Trip> all;
  for (bool const device : on_device) {
    all.push_back({std::ssize(all), device});
  }
  return all;
}

TEST(TripQueue, KeepsTheOrderForOneWorker) {
  TripQueue queue{trips({false, true, true, false, true}), 1, false, any};
  std::vector<std::int64_t> taken;
  while (auto const trip = queue.take()) {
    taken.push_back(trip->subgroup);
    queue.end(*trip);
  }
  EXPECT_THAT(taken, testing::ElementsAre(0, 1, 2, 3, 4));
}

TEST(TripQueue, DealsTheLowestFirstOnceItIsTold) {
  std::vector<Trip> const order{{4, true}, {3, false}, {2, false}, {1, true}, {0, false}};
  TripQueue queue{order, 1, false, any};
  std::vector<std::int64_t> taken;
  while (auto const trip = queue.take()) {
    taken.push_back(trip->subgroup);
    queue.end(*trip);
    if (taken.size() == 1) {
      queue.lowest_first();
    }
  }
  // The first two, one for each side, were dealt by need.
  EXPECT_THAT(taken, testing::ElementsAre(4, 0, 1, 2, 3));
}

TEST(TripQueue, DealsWhatIsBroughtForwardFirstAndTheLastOfThatBeforeAll) {
  TripQueue queue{trips({false, false, false, false, false}), 1, false, any};
  EXPECT_EQ(queue.take()->subgroup, 0);
  queue.bring_forward(0);  // it was dealt
  queue.bring_forward(2);
  queue.bring_forward(3);
  for (std::int64_t const expected : {3, 2, 1, 4}) {
    EXPECT_EQ(queue.take()->subgroup, expected);
  }
  EXPECT_FALSE(queue.take());
}

TEST(TripQueue, GivesWorkToTheSideThatHasNone) {
  TripQueue queue{trips({false, false, false, true, true, true}), 2, false, any};
  auto const cpu = queue.take();
  auto const device = queue.take();
  EXPECT_EQ(cpu->subgroup, 0);
  EXPECT_EQ(device->subgroup, 3);
  queue.end(*device);
  EXPECT_EQ(queue.take()->subgroup, 4);  // the CPU has its trip
  queue.end(*cpu);
  EXPECT_EQ(queue.take()->subgroup, 1);
}

TEST(TripQueue, GivesASideNoTripThatIsFarAheadOfTheGradients) {
  std::vector<bool> on_device(10, true);
  on_device.front() = on_device.back() = false;
  TripQueue queue{trips(on_device), 2, false, 3};
  auto const cpu = queue.take();
  EXPECT_EQ(cpu->subgroup, 0);
  EXPECT_EQ(queue.take()->subgroup, 1);
  queue.end(*cpu);
  EXPECT_EQ(queue.take()->subgroup, 2) << "the CPU's next one is 9";
  for (std::int64_t subgroup = 0; subgroup < 5; ++subgroup) {
    queue.bring_forward(subgroup);
  }
  EXPECT_EQ(queue.take()->subgroup, 4) << "9 is four ahead";
  queue.bring_forward(5);
  EXPECT_EQ(queue.take()->subgroup, 9);
}

TEST(TripQueue, ReachesAnyTripOnceTheLowestComeFirst) {
  TripQueue queue{trips({true, true, true, true, true, false}), 2, false, 1};
  EXPECT_EQ(queue.take()->subgroup, 0);
  EXPECT_EQ(queue.take()->subgroup, 1);
  queue.lowest_first();
  EXPECT_EQ(queue.take()->subgroup, 5);
}

TEST(TripQueue, GivesEachSideTwoTripsWhenFourWorkersAsk) {
  TripQueue queue{trips({true, true, true, true, false, false, false}), 4, false, any};
  std::vector<std::int64_t> taken;
  for (int worker = 0; worker < 4; ++worker) {
    taken.push_back(queue.take()->subgroup);
  }
  EXPECT_THAT(taken, testing::UnorderedElementsAre(0, 1, 4, 5));
}

TEST(TripQueue, LeavesAllWorkersToTheSideThatHasTripsLeft) {
  TripQueue queue{trips({true, true, true}), 3, false, any};
  for (std::int64_t expected = 0; expected < 3; ++expected) {
    EXPECT_EQ(queue.take()->subgroup, expected);
  }
  EXPECT_FALSE(queue.take());
  EXPECT_EQ(queue.cpu_trips(), 0);
}

TEST(TripQueue, HoldsTheCpuBackUntilTheDeviceIsDoneIfItComesFirst) {
  TripQueue queue{trips({false, true}), 2, true, any};
  auto const device = queue.take();
  EXPECT_EQ(device->subgroup, 1);
  auto cpu = std::async(std::launch::async, [&] { return queue.take(); });
  EXPECT_EQ(cpu.wait_for(std::chrono::milliseconds{5}), std::future_status::timeout);
  queue.end(*device);
  EXPECT_EQ(cpu.get()->subgroup, 0);
}

TEST(TripQueue, DealsNothingAfterAFailureAndKeepsTheFirstError) {
  TripQueue queue{trips({false, true, false, true}), 2, false, any};
  auto const cpu = queue.take();
  EXPECT_NO_THROW(queue.rethrow());
  EXPECT_FALSE(queue.failed());
  EXPECT_EQ(queue.fail(std::make_exception_ptr(IoError{"first"})), 1);
  EXPECT_EQ(queue.fail(std::make_exception_ptr(UsageError{"second"})), 0);
  EXPECT_FALSE(queue.take());
  queue.wait_for_device();
  queue.end(*cpu);
  EXPECT_TRUE(queue.failed());
  EXPECT_THROW(queue.rethrow(), IoError);
}

}  // namespace
}  // namespace offstage::update
