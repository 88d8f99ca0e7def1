#include "parameters/streamed_parameters.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"
#include "device/shuffled_device.hpp"
#include "parameters/parameter_support.hpp"
#include "update/deadline.hpp"

namespace offstage::parameters {
namespace {

using namespace std::chrono_literals;
using update::Deadline;
using update::MemoryTiers;

/// Delays that depend on the call, its key and the seed.
std::function<void(MemoryTiers::Event)> delays(std::uint64_t seed) {
  return [seed](MemoryTiers::Event event) {
    auto const words =
        philox(seed, static_cast<std::uint64_t>(event.key), static_cast<std::uint64_t>(event.call));
    std::this_thread::sleep_for(std::chrono::microseconds{words[0] % 400});
  };
}

/// Two steps of two micro-batches, with an update between them that goes on under the second step.
template <class T>
void train(Parameters<T>& parameters, bool tied) {
  auto const& forward = tied ? tied_forward : forward_layers;
  auto const& backward = tied ? tied_backward : backward_layers;
  int const beside = tied ? head : -1;
  state::Readiness readiness{parameters.subgroups};
  parameters->set_readiness(&readiness);
  std::vector<int> micro_batch{forward};
  micro_batch.insert(micro_batch.end(), backward.begin(), backward.end());
  for (int step = 0; step < 2; ++step) {
    std::future<void> update;
    if (step > 0) {
      readiness.begin();
      update = std::async(std::launch::async, [&] {
        for (auto const& subgroup : parameters.subgroups) {
          parameters.update(subgroup, step);
          readiness.done(subgroup.index);
        }
      });
    }
    parameters->begin();
    parameters->expect(micro_batch);
    parameters->expect(micro_batch);
    for (int i = 0; i < 2; ++i) {
      parameters.use(forward, step, beside);
      parameters.use(backward, step, beside);
    }
    if (update.valid()) {
      update.get();
    }
  }
  parameters->stop();
}

template <class T>
class StreamedParametersOf : public testing::Test {};
using AllElements = testing::Types<float, bfloat16, float16>;
TYPED_TEST_SUITE(StreamedParametersOf, AllElements);

TYPED_TEST(StreamedParametersOf, GiveEveryLayerAsTheLastUpdateLeftItWhateverEndsFirst) {
  std::uint64_t seed = 0;
  for (Home const home : {Home::host, Home::storage}) {
    for (int const slots : {2, 3, 4}) {
      for (bool const tied : {false, true}) {
        Deadline const deadline{60s, "a stream of parameters"};
        device::ShuffledDevice device{++seed, 0, 200us};
        Parameters<TypeParam> parameters{device,
                                         {.home = home, .slots = slots, .hook = delays(seed)}};
        train(parameters, tied);
      }
    }
  }
}

// Two blocks' slots and one for the first and the last layer: the least that there may be.
TYPED_TEST(StreamedParametersOf, GiveLargeLayersInASlotOfTheirOwn) {
  std::uint64_t seed = 200;
  for (auto const kind :
       {state::LinkKind::usual, state::LinkKind::direct, state::LinkKind::queued}) {
    for (Home const home : {Home::host, Home::storage}) {
      for (int const slots : {2, 3}) {
        Deadline const deadline{60s, "a stream of small and large parameters"};
        device::ShuffledDevice device{++seed, 0, 200us};
        Parameters<TypeParam> parameters{device,
                                         {.home = home,
                                          .slots = slots,
                                          .ahead = 1,
                                          .large = true,
                                          .link = kind,
                                          .buffers = 2,
                                          .hook = delays(seed)}};
        train(parameters, false);
      }
    }
  }
}

TYPED_TEST(StreamedParametersOf, ComeFromTheRanksByAnyLink) {
  std::uint64_t seed = 100;
  for (auto const kind : {state::LinkKind::direct, state::LinkKind::queued}) {
    for (Home const home : {Home::host, Home::storage}) {
      for (bool const tied : {false, true}) {
        Deadline const deadline{60s, "parameters from device to device"};
        device::ShuffledDevice device{++seed, 0, 200us};
        Parameters<TypeParam> parameters{
            device, {.home = home, .slots = 2, .link = kind, .hook = delays(seed)}};
        train(parameters, tied);
      }
    }
  }
}

TYPED_TEST(StreamedParametersOf, NeedNoLink) {
  for (Home const home : {Home::host, Home::storage}) {
    for (bool const tied : {false, true}) {
      Deadline const deadline{60s, "a stream of parameters without a link"};
      auto const device = device::make_host_device(0);
      Parameters<TypeParam> parameters{*device, {.home = home, .slots = 2}};
      train(parameters, tied);
    }
  }
}

// One buffer to read and one to update: the least that there may be.
TEST(StreamedParameters, NeverHangWithTheSmallestPools) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    Deadline const deadline{60s, "the smallest pools"};
    device::ShuffledDevice device{seed, 0, 100us};
    Parameters<bfloat16> parameters{device,
                                    {.home = Home::storage,
                                     .slots = 2,
                                     .ahead = 1,
                                     .subgroup_chunks = 1 + static_cast<std::int64_t>(seed % 5),
                                     .buffers = 2,
                                     .hook = delays(seed)}};
    train(parameters, seed % 2 == 0);
  }
}

// As an update under backward does: a subgroup changes as soon as no layer of it is expected any
// more.
TEST(StreamedParameters, TakeNewParametersOfLayersThatAreOverWhileOthersAreUsed) {
  for (Home const home : {Home::host, Home::storage}) {
    Deadline const deadline{60s, "an update under backward"};
    device::ShuffledDevice device{5, 0, 100us};
    Parameters<float> parameters{device, {.home = home, .ahead = 2, .buffers = 3}};
    parameters->begin();
    parameters->expect(forward_layers);
    parameters->expect(backward_layers);
    parameters.use(forward_layers, 0);
    auto last = parameters.subgroups.end();
    for (int const layer : backward_layers) {
      parameters.use({layer}, 0);
      auto const over = parameters.map.shard_offset(layer, parameters.comm.rank());
      while (last != parameters.subgroups.begin() && std::prev(last)->begin >= over) {
        parameters.update(*--last, 1);
      }
    }
    while (last != parameters.subgroups.begin()) {
      parameters.update(*--last, 1);
    }
    parameters->begin();
    parameters->expect(forward_layers);
    parameters.use(forward_layers, 1);
  }
}

TEST(StreamedParameters, ReadEachExtentOncePerSweepAndWhatIsStillThereNotAgain) {
  auto const device = device::make_host_device(0);
  Parameters<bfloat16> parameters{*device, {.home = Home::storage, .slots = 3, .ahead = 1}};
  std::vector<int> order{forward_layers};
  order.insert(order.end(), backward_layers.begin(), backward_layers.end());
  parameters->begin();
  parameters->expect(order);
  parameters.use(order, 0);
  std::vector<tiers::Key> once;
  for (auto const& subgroup : parameters.subgroups) {
    once.push_back(subgroup.index);
  }
  // Backward finds layers 5, 4 and 3 on the device, and takes 2 and 1 from what is below 3.
  auto fetched = parameters.tiers().keys_of(MemoryTiers::Call::fetch);
  ASSERT_GE(fetched.size(), once.size());
  EXPECT_TRUE(std::equal(once.begin(), once.end(), fetched.begin()));
  auto const below = parameters.map.shard_offset(3, parameters.comm.rank());
  for (std::size_t i = once.size(); i < fetched.size(); ++i) {
    EXPECT_LT(parameters.subgroups[static_cast<std::size_t>(fetched[i])].begin, below);
  }
  std::sort(fetched.begin() + std::ssize(once), fetched.end());
  EXPECT_EQ(std::adjacent_find(fetched.begin() + std::ssize(once), fetched.end()), fetched.end());
}

TEST(StreamedParameters, OfARankAloneBringTheNextLayersWhileOneIsUsed) {
  auto const device = device::make_host_device(0);
  Parameters<float> parameters{
      *device, {.home = Home::storage, .slots = 3, .subgroup_chunks = 1, .alone = true}};
  parameters->begin();
  parameters->expect(forward_layers);
  static_cast<void>(parameters->acquire(0));
  auto const brought = [&] { return parameters.tiers().keys_of(MemoryTiers::Call::fetch).size(); };
  auto const three_layers = static_cast<std::size_t>(5 + 1 + 7);
  Deadline const deadline{60s, "layers that should come ahead of use"};
  while (brought() < three_layers) {
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(5ms);
  EXPECT_LE(brought(), three_layers + 2) << "there is no slot for a fourth";
  parameters->release(0, nullptr);
}

TEST(StreamedParameters, LeaveASlotAsItIsUntilTheModelsStreamIsDoneWithIt) {
  std::vector<std::unique_ptr<device::Device>> devices;
  devices.push_back(device::make_host_device(0));
  devices.push_back(std::make_unique<device::ShuffledDevice>(1));
  for (auto const& device : devices) {
    Parameters<float> parameters{*device, {.slots = 2}};
    device::Stream& model = parameters.model();
    parameters->begin();
    parameters->expect(forward_layers);
    auto const whole = parameters->acquire(0);
    std::vector<float> seen(whole.size());
    std::promise<void> sign;
    model.enqueue([go_on = sign.get_future().share()] { go_on.wait(); });
    model.copy(seen.data(), whole.data(), static_cast<Bytes>(whole.size_bytes()),
               device::Copy::device_to_host);
    parameters->release(0, model.record());
    std::this_thread::sleep_for(20ms);  // a rank alone would have brought layer 2 meanwhile
    sign.set_value();
    parameters.use({1, 2, 3, 4, 5}, 0);
    model.synchronize();
    parameters.expect_values(0, seen, 0);
  }
}

TEST(StreamedParameters, RefuseAnotherOrderThanTheOneThatIsExpected) {
  auto const device = device::make_host_device(0);
  Parameters<float> parameters{*device, {}};
  EXPECT_THROW((void)parameters->acquire(0), PreconditionError) << "nothing is expected";
  parameters->begin();
  parameters->expect(forward_layers);
  EXPECT_THROW((void)parameters->acquire(1), PreconditionError);
  EXPECT_THROW(parameters->begin(), PreconditionError);
  static_cast<void>(parameters->acquire(0));
  static_cast<void>(parameters->acquire(1));
  EXPECT_THROW((void)parameters->acquire(2), PreconditionError) << "two are held";
  EXPECT_THROW(parameters->release(2, nullptr), PreconditionError);
  parameters->release(0, nullptr);
  parameters->release(1, nullptr);
  parameters.use({2, 3, 4, 5}, 0);
  parameters->begin();
}

TEST(StreamedParameters, PassOnWhatAPathOrAnUpdateFailedWith) {
  for (bool const by_update : {false, true}) {
    Deadline const deadline{60s, "an error"};
    auto const device = device::make_host_device(0);
    Parameters<float> parameters{*device,
                                 {.home = Home::storage, .hook = [&](MemoryTiers::Event event) {
                                    if (!by_update && event.call == MemoryTiers::Call::fetch) {
                                      throw IoError{"the disk is gone"};
                                    }
                                  }}};
    state::Readiness readiness{parameters.subgroups};
    if (by_update) {
      readiness.begin();
      readiness.fail(std::make_exception_ptr(IoError{"the disk is gone"}));
    }
    parameters->set_readiness(&readiness);
    parameters->begin();
    parameters->expect(forward_layers);
    EXPECT_THROW((void)parameters->acquire(0), IoError);
    parameters->stop();
  }
}

TEST(StreamedParameters, EndWhileTheyWaitForAnUpdateThatNeverEnds) {
  for (Home const home : {Home::host, Home::storage}) {
    Deadline const deadline{60s, "the end"};
    device::ShuffledDevice device{1};
    Parameters<float> parameters{device, {.home = home}};
    state::Readiness readiness{parameters.subgroups};
    parameters->set_readiness(&readiness);
    readiness.begin();
    parameters->begin();
    parameters->expect(forward_layers);
    std::this_thread::sleep_for(2ms);
    parameters.end();
    EXPECT_EQ(parameters.tiers().held(), 0);
  }
}

TEST(StreamedParameters, TakeTheMemoryThatTheySay) {
  device::ShuffledDevice device{1};
  Bytes const before = device.used();
  Parameters<bfloat16> const parameters{device, {.home = Home::host, .slots = 2}};
  EXPECT_EQ(device.used() - before, StreamedParameters<bfloat16>::device_bytes(parameters.map, 2));
  // Nine chunks and 29, and what the last of equal parts lacks, which every slot has room for.
  int const ranks = parameters.comm.size();
  Bytes const usual = round_up(9, ranks) * 4096 * 2;
  Bytes const largest = round_up(29, ranks) * 4096 * 2;
  EXPECT_EQ(StreamedParameters<bfloat16>::device_bytes(parameters.map, 2), 2 * usual);
  Bytes const between = device.used();
  Parameters<bfloat16> const large{device, {.home = Home::host, .slots = 2, .large = true}};
  EXPECT_EQ(device.used() - between, 2 * usual + largest);
  EXPECT_EQ(StreamedParameters<bfloat16>::device_bytes(large.map, 2), 2 * usual + largest);
}

TEST(StreamedParameters, BringALargeLayerOnceWhereNoOtherTakesItsSlot) {
  auto const device = device::make_host_device(0);
  Parameters<bfloat16> parameters{
      *device, {.home = Home::storage, .slots = 2, .subgroup_chunks = 1, .large = true}};
  std::vector<int> const order{0, 1, 2, 3, 4, 0, 4, 3, 2, 1, 0};
  parameters->begin();
  parameters->expect(order);
  parameters.use(order, 0);
  auto const fetched = parameters.tiers().keys_of(MemoryTiers::Call::fetch);
  auto const own = parameters.map.chunks(0, parameters.comm.rank()).count;
  EXPECT_EQ(std::ranges::count_if(fetched, [&](tiers::Key key) { return key < own; }), own);
}

TEST(StreamedParameters, RefuseTwoLargeLayersAtATime) {
  auto const device = device::make_host_device(0);
  Parameters<float> parameters{*device, {.slots = 3, .large = true}};
  parameters->begin();
  parameters->expect(std::vector{0, 5});
  static_cast<void>(parameters->acquire(0));
  EXPECT_THROW((void)parameters->acquire(5), PreconditionError);
  parameters->release(0, nullptr);
  parameters.use({5}, 0);
}

TEST(StreamedParameters, NeedHostMemoryToGatherThroughOnlyWhereTheHostDoesNotSeeTheDevice) {
  using state::Route;
  auto const bytes = [](int ranks, Route route) {
    state::ShardMap const map{layers_with({9 * 4096, 2 * 4096}), ranks};
    return StreamedParameters<bfloat16>::host_bytes(map, route);
  };
  for (auto const route : {Route::in_place, Route::staged}) {
    EXPECT_EQ(bytes(1, route), 0);
  }
  EXPECT_EQ(bytes(2, Route::in_place), 0);
  EXPECT_EQ(bytes(2, Route::staged), 10 * 4096 * 2) << "with the padding of the last part";
  EXPECT_EQ(bytes(2, Route::direct), 5 * 4096 * 2);
}

TEST(StreamedParameters, NameTheirKeyWhenDeviceMemoryIsShort) {
  device::ShuffledDevice device{1, 100 * KiB};
  try {
    Parameters<float> const parameters{device, {.slots = 2}};
    FAIL() << "two layers of 144 KiB fit into 100 KiB";
  } catch (UsageError const& error) {
    EXPECT_NE(std::string{error.what()}.find("parameters.home"), std::string::npos);
  }
}

}  // namespace
}  // namespace offstage::parameters
