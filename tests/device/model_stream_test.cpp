// The model's stream on an emulated device whose products have a rate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "device/device.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace offstage::device {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

/// What a pacer may let work begin early (base/pacer.hpp).
constexpr milliseconds stream_credit{5};

using Clock = std::chrono::steady_clock;

TEST(ModelStream, QueuesWorkAndRunsItInOrder) {
  auto const device = make_host_device(0, {.compute = 1e12});
  auto const stream = device->make_calling_stream("compute");
  std::promise<void> go;
  std::vector<int> order;
  std::thread::id ran;
  stream->enqueue(
      [&, open = go.get_future().share()] {
        open.wait();
        ran = std::this_thread::get_id();
        order.push_back(1);
      },
      {.flops = 1.0});
  stream->enqueue([&] { order.push_back(2); });  // makes no product
  auto const between = stream->record();
  stream->enqueue([&] { order.push_back(3); }, {.flops = 1.0});
  go.set_value();  // all were queued while none could run
  between->wait();
  stream->synchronize();
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
  EXPECT_NE(ran, std::this_thread::get_id());
}

TEST(ModelStream, AnErrorOfItsWorkSurfacesAtTheWait) {
  auto const device = make_host_device(0, {.compute = 1e12});
  auto const stream = device->make_calling_stream("compute");
  bool ran = false;
  stream->enqueue([] { throw IoError{"failed"}; }, {.flops = 1.0});
  stream->enqueue([&] { ran = true; }, {.flops = 1.0});
  EXPECT_THROW(stream->record()->wait(), IoError);
  EXPECT_THROW(stream->synchronize(), IoError);
  EXPECT_FALSE(ran);
}

TEST(ModelStream, ProductsTakeTheTimeThatTheRateSaysAndALaunchTakesNone) {
  auto const device = make_host_device(0, {.compute = 1e9});
  auto const stream = device->make_calling_stream("compute");
  auto const begin = Clock::now();
  for (int i = 0; i < 6; ++i) {
    stream->enqueue([] {}, {.flops = 10e6});
  }
  EXPECT_LT(Clock::now() - begin, milliseconds{60});
  stream->synchronize();
  EXPECT_GE(Clock::now() - begin, milliseconds{60} - stream_credit);
}

TEST(ModelStream, ADeviceThatNobodyGaveWorkToDoesNotMakeUpForIt) {
  auto const device = make_host_device(0, {.compute = 1e9});
  auto const stream = device->make_calling_stream("compute");
  auto const begin = Clock::now();
  for (int i = 0; i < 2; ++i) {
    std::this_thread::sleep_for(milliseconds{20});  // a slow launching thread
    stream->enqueue([] {}, {.flops = 20e6});
    stream->synchronize();
  }
  EXPECT_GE(Clock::now() - begin, milliseconds{80} - 2 * stream_credit);
}

#ifdef _OPENMP
TEST(ModelStream, KernelsHaveTeamsOfTheSizeOfItsMaker) {
  auto const device = make_host_device(0, {.compute = 1e12});
  int const own = omp_get_max_threads();
  for (int const threads : {1, 3}) {
    omp_set_num_threads(threads);
    auto const stream = device->make_calling_stream("compute");
    int there = 0;
    stream->enqueue([&] { there = omp_get_max_threads(); });
    stream->synchronize();
    EXPECT_EQ(there, threads);
  }
  omp_set_num_threads(own);
}
#endif

}  // namespace
}  // namespace offstage::device
