// What gradients pass from the device to the sums: staging buffers, transfers, the thread that
// adds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/team.hpp"
#include "update/gradients/staging_buffers.hpp"
#include "update/gradients/summing_thread.hpp"
#include "update/gradients/transfer.hpp"

namespace offstage::update {
namespace {

using std::chrono::milliseconds;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr Bytes size = 64;
constexpr auto nothing = [] {};

TEST(StagingBuffers, AreHandedOutInTurn) {
  StagingBuffers staging{2, size, nullptr};
  std::vector<std::byte*> seen;
  for (int i = 0; i < 4; ++i) {
    auto const part = staging.take();
    EXPECT_EQ(std::ssize(part.memory()), size);
    seen.push_back(part.memory().data());
  }
  EXPECT_EQ(seen[1], seen[0] + size);
  EXPECT_THAT(seen, ElementsAre(seen[0], seen[1], seen[0], seen[1]));
}

TEST(StagingBuffers, WaitForTheOneThatWasTakenLongestAgo) {
  StagingBuffers staging{2, size, nullptr};
  std::optional<StagingBuffers::Part> first{staging.take()};
  std::optional<StagingBuffers::Part> second{staging.take()};
  auto third = std::async(std::launch::async, [&] { return staging.take().memory().data(); });
  second.reset();  // not its turn
  EXPECT_EQ(third.wait_for(milliseconds{20}), std::future_status::timeout);
  auto* const memory = first->memory().data();
  {
    StagingBuffers::Part const moved{std::move(*first)};
    EXPECT_EQ(third.wait_for(milliseconds{20}), std::future_status::timeout);
  }
  EXPECT_EQ(third.get(), memory);
}

/// A model whose stream is held up until go() is called.
class Transfer : public testing::Test {
 protected:
  Transfer() {
    model->enqueue([open = sign.get_future().share()] { open.wait(); });
    model->enqueue([this] { std::ranges::fill(gradient, std::byte{7}); });
  }
  ~Transfer() override {
    if (!gone) {
      go();
    }
  }
  Transfer(Transfer const&) = delete;
  Transfer& operator=(Transfer const&) = delete;
  void go() {
    gone = true;
    sign.set_value();
  }
  static std::vector<Slice> all() { return {{0, size}}; }

  std::promise<void> sign;
  bool gone = false;
  std::vector<std::byte> gradient = std::vector<std::byte>(size);
  std::unique_ptr<device::Device> device =
      device::make_host_device(0, {.host_to_device = 1e9, .device_to_host = 1e9});
  std::unique_ptr<device::Stream> model = device->make_stream("model");
  GradientTransfer transfer{*device, *model, size, nullptr};
};

TEST_F(Transfer, BringsWhatTheModelLeavesAndSaysWhenItsMemoryIsFree) {
  auto const arrival = transfer.begin(3, gradient, all());  // what it brings is still to come
  EXPECT_EQ(arrival.layer(), 3);
  model->wait(*arrival.arrived());
  model->enqueue([this] { std::ranges::fill(gradient, std::byte{9}); });
  go();
  EXPECT_THAT(arrival.wait(), Each(std::byte{7}));
  model->synchronize();
  EXPECT_THAT(arrival.wait(), Each(std::byte{7}));
}

TEST_F(Transfer, BringsThePartsThatItIsToldAlone) {
  std::vector<Slice> const parts{{0, 8}, {32, 16}};
  auto const arrival = transfer.begin(0, gradient, parts);
  go();
  auto const there = arrival.wait();
  EXPECT_EQ(std::ssize(there), size);
  EXPECT_THAT(there.first(8), Each(std::byte{7}));
  EXPECT_THAT(there.subspan(32, 16), Each(std::byte{7}));
}

TEST_F(Transfer, HasTwoUnderWayAndWaitsForTheFirstToEndBeforeTheThird) {
  std::optional<GradientArrival> first{transfer.begin(2, gradient, all())};
  auto const second = transfer.begin(1, gradient, all());
  auto third =
      std::async(std::launch::async, [&] { return transfer.begin(0, gradient, all()).layer(); });
  EXPECT_EQ(third.wait_for(milliseconds{20}), std::future_status::timeout);
  go();
  EXPECT_EQ(third.wait_for(milliseconds{20}), std::future_status::timeout) << "nobody has added it";
  first.reset();
  EXPECT_EQ(third.get(), 0);
}

/// Arrivals that are there, of memory that begins with a number.
class Summing : public testing::Test {
 protected:
  GradientArrival arrival(int layer) {
    auto part = staging.take();
    part.memory()[0] = static_cast<std::byte>(layer);
    return {layer, std::move(part), size};
  }
  StagingBuffers staging{2, size, nullptr};
};

TEST_F(Summing, AddsInOrderOnAThreadOfItsOwnAndGivesTheMemoryBack) {
  std::vector<int> added;
  std::string name(16, '\0');
  auto const add = [&](int layer, std::span<std::byte const> gradient) {
    EXPECT_EQ(static_cast<int>(gradient[0]), layer);
    EXPECT_EQ(std::ssize(gradient), size);
    added.push_back(layer);
    pthread_getname_np(pthread_self(), name.data(), name.size());
  };
  SummingThread summing{add, nothing};
  for (int layer = 9; layer >= 0; --layer) {
    summing.put(arrival(layer));  // of two buffers
  }
  summing.drain();
  EXPECT_THAT(added, ElementsAre(9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  EXPECT_STREQ(name.c_str(), "gradient sums");
}

TEST_F(Summing, LetsTheCallerGoOn) {
  std::promise<void> sign;
  std::atomic<int> added = 0;
  auto const add = [&, open = sign.get_future().share()](int, std::span<std::byte const>) {
    open.wait();
    ++added;
  };
  SummingThread summing{add, nothing};
  summing.put(arrival(1));
  summing.put(arrival(0));
  EXPECT_EQ(added, 0);
  auto third = std::async(std::launch::async, [&] { static_cast<void>(arrival(2)); });
  EXPECT_EQ(third.wait_for(milliseconds{20}), std::future_status::timeout);
  sign.set_value();
  third.get();
  summing.drain();
  EXPECT_EQ(added, 2);
}

TEST_F(Summing, AnErrorReachesTheCallerAndStaysAndTheMemoryComesBack) {
  std::vector<int> added;
  int failed = 0;
  auto const add = [&](int layer, std::span<std::byte const>) {
    if (layer == 3) {
      throw IoError{"the disk is gone"};
    }
    added.push_back(layer);
  };
  SummingThread summing{add, [&] { ++failed; }};
  for (int layer = 4; layer >= 0; --layer) {
    summing.put(arrival(layer));
  }
  EXPECT_THROW(summing.drain(), IoError);
  EXPECT_THROW(summing.rethrow(), IoError);
  EXPECT_THROW(summing.drain(), IoError);
  EXPECT_THAT(added, ElementsAre(4));
  EXPECT_EQ(failed, 1);
}

TEST_F(Summing, AnErrorOfTheDeviceReachesTheCallerToo) {
  auto const device = device::make_host_device(0, {.device_to_host = 1e9});
  auto const model = device->make_stream("model");
  GradientTransfer transfer{*device, *model, size, nullptr};
  std::vector<std::byte> const gradient(size);
  std::vector<int> added;
  int failed = 0;
  SummingThread summing{[&](int layer, std::span<std::byte const>) { added.push_back(layer); },
                        [&] { ++failed; }};
  model->enqueue([] { throw IoError{"the kernel failed"}; });
  std::vector<Slice> const all{{0, size}};
  summing.put(transfer.begin(1, gradient, all));
  summing.put(transfer.begin(0, gradient, all));
  EXPECT_THROW(summing.drain(), IoError);
  EXPECT_THAT(added, IsEmpty());
  EXPECT_EQ(failed, 1);
}

TEST_F(Summing, LeavesOutWhatWaitsWhenItIsStopped) {
  std::promise<void> begun;
  std::promise<void> sign;
  std::vector<int> added;
  auto const add = [&, open = sign.get_future().share()](int layer, std::span<std::byte const>) {
    begun.set_value();
    open.wait();
    added.push_back(layer);
  };
  SummingThread summing{add, nothing};
  summing.put(arrival(1));
  summing.put(arrival(0));
  begun.get_future().wait();
  auto const opener = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(milliseconds{10});
    sign.set_value();
  });
  summing.stop();
  EXPECT_THAT(added, ElementsAre(1));
  static_cast<void>(arrival(2));  // both buffers are free
  static_cast<void>(arrival(3));
}

#ifdef _OPENMP
TEST_F(Summing, HasTeamsOfTheSizeOfItsMaker) {
  int const own = team_size();
  for (int const threads : {1, 3}) {
    set_team_size(threads);
    int there = 0;
    SummingThread summing{[&](int, std::span<std::byte const>) { there = team_size(); }, nothing};
    summing.put(arrival(0));
    summing.drain();
    EXPECT_EQ(there, threads);
  }
  set_team_size(own);
}
#endif

}  // namespace
}  // namespace offstage::update
