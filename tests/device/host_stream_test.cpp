#include "device/host_stream.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <latch>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/thread.hpp"
#include "device/device.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace offstage::device {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

/// What a pacer may let work begin early (base/pacer.hpp).
constexpr milliseconds credit{5};

using Clock = std::chrono::steady_clock;

/// Keeps an engine busy from construction until release().
class Occupied {
 public:
  explicit Occupied(Engine& engine)
      : thread_{"occupier", [this, &engine] {
                  engine.run(0, [this] {
                    begun_.count_down();
                    released_.wait();
                  });
                }} {
    begun_.wait();
  }
  ~Occupied() {
    if (!released_.try_wait()) {
      release();
    }
  }
  Occupied(Occupied const&) = delete;
  Occupied& operator=(Occupied const&) = delete;
  void release() {
    released_.count_down();
    thread_.join();
  }

 private:
  std::latch begun_{1}, released_{1};
  NamedThread thread_;
};

TEST(Engine, DoesOneThingAtATime) {
  Engine engine{0.0};
  int present = 0;  // without a lock: a thread sanitizer sees two at once
  int done = 0;
  {
    std::vector<NamedThread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back("worker", [&] {
        for (int i = 0; i < 250; ++i) {
          engine.run(1, [&] {
            EXPECT_EQ(++present, 1);
            ++done;
            --present;
          });
        }
      });
    }
  }
  EXPECT_EQ(done, 1000);
}

TEST(Engine, GoesOnAfterAnError) {
  Engine engine{1e9};
  EXPECT_THROW(engine.run(1, [] { throw IoError{"failed"}; }), IoError);
  bool ran = false;
  engine.run(1, [&] { ran = true; });
  EXPECT_TRUE(ran);
}

TEST(HostStream, RunsItsWorkInOrder) {
  auto const device = make_host_device(0);
  auto const stream = device->make_stream("compute");
  EXPECT_EQ(stream->kind(), Kind::host);
  EXPECT_EQ(stream->native(), nullptr);
  std::vector<int> order;
  stream->enqueue([&] { order.push_back(1); });
  stream->enqueue([&] { order.push_back(2); });
  auto const event = stream->record();
  auto const other = device->make_stream("copy");
  other->wait(*event);
  other->enqueue([&] { order.push_back(3); });
  other->synchronize();
  event->wait();
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(HostStream, ZeroesWhatItIsToldAndNoMore) {
  auto const device = make_host_device(0, {.host_to_device = 1.0});  // the link plays no part
  for (auto const& stream : {device->make_stream("copy"), device->make_calling_stream("compute")}) {
    Buffer const buffer = device->allocate(4, "four bytes");
    auto const bytes = buffer.as<std::uint8_t>();
    std::ranges::fill(bytes, std::uint8_t{7});
    stream->zero(bytes.data() + 1, 2);
    stream->zero(nullptr, 0);
    stream->synchronize();
    EXPECT_THAT(bytes, ElementsAre(7, 0, 0, 7));
    EXPECT_THAT(stream->scratch(), IsEmpty());
    EXPECT_THROW((void)stream->blas(), PreconditionError);
  }
}

TEST(HostStream, CopiesToAndFromTheDevice) {
  auto const device = make_host_device(0);
  for (auto const& stream : {device->make_stream("copy"), device->make_calling_stream("compute")}) {
    std::vector<float> source(1000);
    std::iota(source.begin(), source.end(), 0.0F);
    Bytes const size = 4000;
    Buffer const a = device->allocate(size, "a");
    Buffer const b = device->allocate(size, "b");
    std::vector<float> target(1000);
    stream->copy(a.as<float>().data(), source.data(), size, Copy::host_to_device);
    stream->copy(b.as<float>().data(), a.as<float>().data(), size, Copy::device_to_device);
    stream->copy(target.data(), b.as<float>().data(), size, Copy::device_to_host);
    stream->copy(nullptr, nullptr, 0, Copy::host_to_device);
    stream->synchronize();
    EXPECT_EQ(target, source);
  }
}

TEST(HostStream, TheCallerGoesOnWhileQueuedWorkWaits) {
  auto const device = make_host_device(0);
  auto const stream = device->make_stream("compute");
  std::promise<void> go;
  bool done = false;
  stream->enqueue([&] {
    go.get_future().wait();
    done = true;
  });
  auto const event = stream->record();
  go.set_value();
  event->wait();
  EXPECT_TRUE(done);
}

TEST(HostStream, ACallingStreamRunsItsWorkAtOnceOnTheCaller) {
  auto const device = make_host_device(0);
  auto const stream = device->make_calling_stream("compute");
  std::thread::id ran;
  stream->enqueue([&] { ran = std::this_thread::get_id(); });
  EXPECT_EQ(ran, std::this_thread::get_id());
  stream->enqueue([&] { ran = {}; }, {.updates = 1000});
  EXPECT_EQ(ran, std::thread::id{});
  EXPECT_THROW(stream->enqueue([] { throw IoError{"failed"}; }), IoError);
  stream->record()->wait();
}

TEST(HostStream, KernelsOfDifferentStreamsRunAtTheSameTime) {
  auto const device = make_host_device(0);
  auto const one = device->make_stream("one");
  auto const two = device->make_stream("two");
  std::latch both{2};  // neither passes alone
  one->enqueue([&] { both.arrive_and_wait(); });
  two->enqueue([&] { both.arrive_and_wait(); });
  one->synchronize();
  two->synchronize();
}

TEST(HostStream, DirectionsHaveAnEngineEachAndCopiesWithinTheDeviceNone) {
  HostEngines engines{{}};
  auto const up = make_queued_stream(engines, "up");
  auto const down = make_queued_stream(engines, "down");
  int const source = 7;
  int first = 0;
  int second = 0;
  int third = 0;
  std::atomic<bool> arrived = false;
  {
    Occupied const to_device{engines.to_device};
    up->copy(&first, &source, sizeof(int), Copy::host_to_device);
    up->enqueue([&] { arrived = true; });
    down->copy(&second, &source, sizeof(int), Copy::device_to_host);
    down->synchronize();
    EXPECT_EQ(second, 7);
    {
      Occupied const to_host{engines.to_host};
      down->copy(&third, &second, sizeof(int), Copy::device_to_device);
      down->synchronize();
      EXPECT_EQ(third, 7);
    }
    EXPECT_FALSE(arrived);
  }
  up->synchronize();
  EXPECT_TRUE(arrived);
  EXPECT_EQ(first, 7);
}

TEST(HostStream, KernelsThatUpdateRunOneAtATimeAndOthersBesideThem) {
  HostEngines engines{{}};
  auto const stream = make_queued_stream(engines, "update");
  bool updated = false;
  bool ran = false;
  {
    Occupied const busy{engines.update};
    stream->enqueue([&] { ran = true; });
    stream->synchronize();
    EXPECT_TRUE(ran);
    stream->enqueue([&] { updated = true; }, {.updates = 10});
  }
  stream->synchronize();
  EXPECT_TRUE(updated);
}

TEST(HostStream, CopiesTakeTheTimeThatTheRatesSay) {
  // 50 ms each way; both streams of a direction share its rate.
  std::vector<std::byte> memory(100'000);
  auto const device = make_host_device(0, {.host_to_device = 4e6, .device_to_host = 4e6});
  Buffer const buffer = device->allocate(100'000, "buffer");
  auto const one = device->make_stream("one");
  auto const two = device->make_stream("two");
  for (Copy const direction : {Copy::host_to_device, Copy::device_to_host}) {
    bool const up = direction == Copy::host_to_device;
    void* const target = up ? buffer.as<std::byte>().data() : memory.data();
    void const* const source = up ? memory.data() : buffer.as<std::byte>().data();
    auto const begin = Clock::now();
    one->copy(target, source, 100'000, direction);
    two->copy(target, source, 100'000, direction);
    one->synchronize();
    two->synchronize();
    EXPECT_GE(Clock::now() - begin, milliseconds{50} - credit);
  }
}

TEST(HostStream, UpdatesTakeTheTimeThatTheRateSays) {
  auto const device = make_host_device(0, {.device_update = 2e6});
  auto const queued = device->make_stream("update");
  auto const calling = device->make_calling_stream("compute");
  auto const begin = Clock::now();
  queued->enqueue([] {}, {.updates = 60'000});
  calling->enqueue([] {}, {.updates = 60'000});
  queued->synchronize();
  EXPECT_GE(Clock::now() - begin, milliseconds{60} - credit);
}

TEST(HostStream, WaitingForAnotherStreamsEventHoldsUpTheStreamAlone) {
  auto const device = make_host_device(0);
  auto const first = device->make_stream("first");
  auto const second = device->make_stream("second");
  std::promise<void> go;
  std::vector<int> order;
  first->enqueue([&] {
    go.get_future().wait();
    order.push_back(1);
  });
  second->wait(*first->record());  // the event itself is gone at once
  second->enqueue([&] { order.push_back(2); });
  auto const end = second->record();
  go.set_value();
  end->wait();
  EXPECT_THAT(order, ElementsAre(1, 2));
}

TEST(HostStream, EventsOrderCallingAndQueuedStreams) {
  auto const device = make_host_device(0);
  auto const calling = device->make_calling_stream("compute");
  auto const queued = device->make_stream("copy");
  for (int i = 0; i < 50; ++i) {
    int value = 0;
    calling->enqueue([&] { value = 1; });
    queued->wait(*calling->record());
    queued->enqueue([&] { value *= 10; });
    calling->wait(*queued->record());
    calling->enqueue([&] { value += 1; });
    EXPECT_EQ(value, 11);
  }
}

TEST(HostStream, AnEventOutlivesItsStream) {
  auto const device = make_host_device(0);
  auto stream = device->make_stream("short");
  bool done = false;
  stream->enqueue([&] { done = true; });
  auto const event = stream->record();
  stream.reset();
  EXPECT_TRUE(done);
  event->wait();
  auto const other = device->make_stream("other");
  other->wait(*event);
  other->synchronize();
}

TEST(HostStream, AStreamThatEndsDoesAllThatIsQueued) {
  auto const device = make_host_device(0);
  int done = 0;
  for (int i = 0; i < 20; ++i) {
    auto const stream = device->make_stream("short");
    for (int k = 0; k < 10; ++k) {
      stream->enqueue([&] { ++done; });
    }
  }
  EXPECT_EQ(done, 200);
}

TEST(HostStream, LetsGoOfAKernelBeforeItSaysThatItIsDone) {
  auto const device = make_host_device(0);
  auto const stream = device->make_stream("compute");
  auto captured = std::make_shared<int>(1);
  stream->enqueue([captured] { static_cast<void>(captured); });
  stream->synchronize();
  EXPECT_EQ(captured.use_count(), 1);
}

TEST(HostStream, AnErrorOfQueuedWorkSurfacesAndStays) {
  auto const device = make_host_device(0);
  auto const stream = device->make_stream("compute");
  std::vector<int> ran;
  stream->enqueue([&] { ran.push_back(1); });
  auto const before = stream->record();
  stream->enqueue([] { throw IoError{"failed"}; }, {.updates = 5});
  stream->enqueue([&] { ran.push_back(2); });
  auto const after = stream->record();
  EXPECT_THROW(stream->synchronize(), IoError);
  EXPECT_NO_THROW(before->wait());
  EXPECT_THROW(after->wait(), IoError);
  stream->enqueue([&] { ran.push_back(3); });
  EXPECT_THROW(stream->synchronize(), IoError);
  EXPECT_THAT(ran, ElementsAre(1));
}

TEST(HostStream, AnErrorReachesWhateverWaitsForTheWork) {
  auto const device = make_host_device(0);
  auto const failing = device->make_stream("failing");
  auto const waiting = device->make_stream("waiting");
  auto const calling = device->make_calling_stream("compute");
  std::vector<int> ran;
  failing->enqueue([] { throw IoError{"failed"}; });
  auto const event = failing->record();
  waiting->wait(*event);
  waiting->enqueue([&] { ran.push_back(1); });
  EXPECT_THROW(waiting->synchronize(), IoError);
  EXPECT_THROW(calling->wait(*event), IoError);
  EXPECT_THAT(ran, IsEmpty());
}

TEST(HostStream, EventsSayWhenTheyCame) {
  auto const device = make_host_device(0);
  auto const now = [] { return std::chrono::steady_clock::now(); };
  for (bool const queued : {false, true}) {
    auto const stream = queued ? device->make_stream("copy") : device->make_calling_stream("model");
    auto const start = now();
    auto const before = stream->record();
    stream->enqueue([] { std::this_thread::sleep_for(milliseconds{3}); });
    auto const after = stream->record();
    EXPECT_GE(before->when(), start);
    EXPECT_GE(after->when() - before->when(), milliseconds{3});
    EXPECT_LE(after->when(), now());
  }
}

TEST(HostStream, RefusesTheEventOfAnotherBackend) {
  class Foreign final : public Event {
   public:
    void wait() const override {}
    [[nodiscard]] std::chrono::steady_clock::time_point when() const override { return {}; }
  };
  auto const device = make_host_device(0);
  EXPECT_THROW(device->make_stream("copy")->wait(Foreign{}), PreconditionError);
}

#ifdef _OPENMP
TEST(HostStream, KernelsOfAQueuedStreamDoNotStartATeam) {
  auto const device = make_host_device(0);
  auto const stream = device->make_stream("compute");
  int const own = omp_get_max_threads();
  int there = 0;
  stream->enqueue([&] { there = omp_get_max_threads(); });
  stream->synchronize();
  EXPECT_EQ(there, 1);
  EXPECT_EQ(omp_get_max_threads(), own);
}
#endif

}  // namespace
}  // namespace offstage::device
