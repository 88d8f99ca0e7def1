// Gradients on their way from the device to the host, and those that stay there.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "device/wrapped_device.hpp"
#include "gradient_fixture.hpp"
#include "platform/scratch_directory.hpp"
#include "update/gradients/slice_transfer.hpp"

namespace offstage::update {
namespace {

using Call = MemoryTiers::Call;

/// Counts copies to the host.
class CountingStream final : public device::WrappedStream {
 public:
  CountingStream(std::unique_ptr<device::Stream> inner, int& copies)
      : WrappedStream{std::move(inner)}, copies_{copies} {}
  void copy(void* target, void const* source, Bytes size, device::Copy direction) override {
    copies_ += direction == device::Copy::device_to_host ? 1 : 0;
    inner().copy(target, source, size, direction);
  }

 private:
  int& copies_;
};

class CountingDevice final : public device::WrappedDevice {
 public:
  CountingDevice(std::unique_ptr<device::Device> inner, int& copies)
      : WrappedDevice{std::move(inner)}, copies_{copies} {}

 protected:
  std::unique_ptr<device::Stream> wrap(std::unique_ptr<device::Stream> stream) override {
    return std::make_unique<CountingStream>(std::move(stream), copies_);
  }

 private:
  int& copies_;
};

// Links keep their order: what is gathered for the next layer must not come behind slices of this
// one.
TEST(SliceTransfer, LeavesTheLinkToOthersWhileTheGradientIsStillToCome) {
  auto const comm = mpi::Communicator::world();
  if (comm.size() == 1) {
    return;  // passes nothing on
  }
  for (auto const kind : {state::LinkKind::direct, state::LinkKind::queued}) {
    auto const device = device::make_host_device(0, link);
    auto const ranks = state::make_link(kind, comm, false);
    auto const model = device->make_stream("model");
    auto const other = device->make_stream("parameters");
    std::vector<Slice> parts;
    for (int rank = 0; rank < comm.size(); ++rank) {
      parts.push_back({rank, 1});
    }
    auto const all = static_cast<std::size_t>(comm.size());
    std::vector<std::byte> gradient(all);
    SliceTransfer transfer{*device, *model, *ranks, comm.size(), nullptr, nullptr};
    std::binary_semaphore gathered{0};
    bool in_time = false;
    std::promise<void> gate;
    model->enqueue([&, open = gate.get_future().share()] {
      open.wait();
      std::ranges::fill(gradient, static_cast<std::byte>(7 + comm.rank()));
    });
    {
      std::jthread const opener{[&] {
        in_time = gathered.try_acquire_for(std::chrono::seconds{30});
        gate.set_value();
      }};
      transfer.begin(0, gradient, parts, parts);
      std::vector<std::byte> parameters(all);
      ranks->all_gather(*other, parameters);
      other->synchronize();
      gathered.release();
    }
    EXPECT_TRUE(in_time) << "parameters came behind a gradient";
    auto const there = transfer.exchange();
    auto const arrival = transfer.finish(std::vector<Slice>{{0, std::ssize(there)}});
    auto const received = arrival.wait();
    for (std::size_t rank = 0; rank < all; ++rank) {
      EXPECT_EQ(received[rank], static_cast<std::byte>(7 + rank));
    }
  }
}

TEST(GradientAccumulator, HoldsOnTheDeviceWhatFitsAndGivesItWithoutALease) {
  GradientFixture<bfloat16> gradients{{.subgroup_chunks = 1,
                                       .emulation = link,
                                       .held_room = 2 * chunk_elements * Bytes{sizeof(float)}}};
  gradients.step();
  auto const wished = gradients.every_second();
  Bytes held = 0;
  for (state::Subgroup const& subgroup : gradients.subgroups()) {
    bool const first =
        testing::Value(std::span{wished}.first(std::min<std::size_t>(2, wished.size())),
                       testing::Contains(subgroup.index));
    auto const lease = gradients->fetch(subgroup);
    EXPECT_EQ(lease.place, first ? GradientPlace::device : GradientPlace::host) << subgroup.index;
    held += first ? subgroup.size * Bytes{sizeof(float)} : 0;
  }
  EXPECT_EQ(gradients.held().bytes(), held);
}

// By the usual link several ranks add in host memory what comes to them there.
TEST(GradientAccumulator, AHeldGradientNeverComesToTheHostButWhereAllSlicesDo) {
  for (auto const kind : state::every_link) {
    GradientFixture<bfloat16> gradients{
        {.subgroup_chunks = 1, .emulation = link, .link = kind, .held_room = room_for_all},
        kind == state::LinkKind::usual ? mpi::Communicator::self() : mpi::Communicator::world()};
    for (int step = 0; step < 2; ++step) {
      gradients.step();
      EXPECT_EQ(gradients->norm(), (expected_norm<bfloat16, float>()));
      EXPECT_EQ(gradients.shard<float>(), gradients.expected_shard<float>());
    }
    auto const held = gradients.every_second();
    for (Call const call : {Call::create, Call::fetch, Call::commit}) {
      for (tiers::Key const key : gradients.accumulated().keys_of(call)) {
        EXPECT_FALSE(testing::Value(held, testing::Contains(key))) << key;
      }
    }
  }
}

// By the usual link several ranks add in host memory what comes to them there.
TEST(GradientAccumulator, SumsThatAreMadeOnTheDeviceLeaveItOnceAndAreNeverFetched) {
  for (auto const kind : state::every_link) {
    GradientFixture<bfloat16> gradients{
        {.subgroup_chunks = 3,
         .emulation = link,
         .link = kind,
         .held_room = room_for_all,
         .sums_there = true},
        kind == state::LinkKind::usual ? mpi::Communicator::self() : mpi::Communicator::world()};
    gradients.step();
    gradients.accumulated().forget_events();
    gradients.step();
    EXPECT_EQ(gradients->norm(), (expected_norm<bfloat16, float>()));
    auto const leaving = gradients.others();  // the last first, as layers come
    EXPECT_EQ(gradients.accumulated().keys_of(Call::create), leaving);
    EXPECT_EQ(gradients.accumulated().keys_of(Call::commit), leaving);
    EXPECT_THAT(gradients.accumulated().keys_of(Call::fetch), testing::IsEmpty());
    EXPECT_EQ(gradients.shard<float>(), gradients.expected_shard<float>());
    Bytes staying = 0;
    for (std::int64_t const index : gradients.every_second()) {
      staying += gradients.subgroups()[static_cast<std::size_t>(index)].size * Bytes{sizeof(float)};
    }
    EXPECT_EQ(gradients.held().bytes(), staying);
  }
}

TEST(GradientAccumulator, WhatStaysFindsRoomBeforeSumsThatLeave) {
  GradientFixture<bfloat16> gradients{{.subgroup_chunks = 1,
                                       .emulation = link,
                                       .held_room = 3 * chunk_elements * Bytes{sizeof(float)},
                                       .sums_there = true},
                                      mpi::Communicator::self()};
  gradients.step();
  auto const stays = gradients.every_second();
  for (std::size_t i = 0; i < stays.size(); ++i) {
    EXPECT_EQ(gradients.held().stays(stays[i]), i < 3) << i;
  }
  for (std::int64_t const index : gradients.others()) {
    EXPECT_FALSE(
        gradients.held().holds(gradients.subgroups()[static_cast<std::size_t>(index)].begin))
        << index;
  }
}

/// Two subgroups of a chunk, each of a block of its own, and room for one of them.
class InTurn : public testing::Test {
 protected:
  InTurn() { held_.hold({}, std::vector<std::int64_t>{0, 1}); }
  /// Adds a gradient whose elements are the subgroup's number and 1.
  void add(std::int64_t subgroup) {
    std::vector<float> const gradient(chunk_elements, static_cast<float>(subgroup + 1));
    auto const left = held_.add<float, float>(*stream_, subgroup * chunk_elements, gradient,
                                              {.begins = true, .final = true});
    EXPECT_THAT(left, testing::IsEmpty());
    stream_->synchronize();
  }
  std::vector<float> take(std::int64_t subgroup) {
    std::vector<float> sums(chunk_elements);
    std::vector<double> norms(1);
    held_.take(subgroup, {0, chunk_elements}, std::as_writable_bytes(std::span{sums}), norms);
    return sums;
  }
  static std::vector<float> all(float value) { return std::vector<float>(chunk_elements, value); }
  static bool waits(std::future<void> const& call) {
    return call.wait_for(std::chrono::milliseconds{20}) == std::future_status::timeout;
  }

  std::unique_ptr<device::Device> device_ = device::make_host_device(0, link);
  std::unique_ptr<device::Stream> stream_ = device_->make_stream("compute");
  std::vector<state::Subgroup> subgroups_{
      {.index = 0, .begin = 0, .size = chunk_elements, .resident = false, .pieces = {}},
      {.index = 1,
       .begin = chunk_elements,
       .size = chunk_elements,
       .resident = false,
       .pieces = {}}};
  HeldGradients held_{
      *device_, chunk_elements* Bytes{sizeof(float)},          sizeof(float), subgroups_, nullptr,
      1,        {.blocks = {0, chunk_elements}, .reserved = 0}};
};

TEST_F(InTurn, SumsWaitUntilThoseThatLayThereHaveLeft) {
  add(1);
  auto next = std::async(std::launch::async, [&] { add(0); });
  EXPECT_TRUE(waits(next));
  EXPECT_EQ(take(1), all(2.0F));
  next.get();
  EXPECT_EQ(take(0), all(1.0F));
}

TEST_F(InTurn, NobodyWaitsForSumsThatNobodyWillTake) {
  add(1);
  auto next = std::async(std::launch::async, [&] { add(0); });
  EXPECT_TRUE(waits(next));
  held_.give_up();
  next.get();
}

TEST(GradientAccumulator, AnErrorOfTheSumsEndsTheWaitForTheirPlace) {
  for (auto const call : {Call::create, Call::commit}) {
    Place place{.subgroup_chunks = 1,
                .emulation = link,
                .held_room = chunk_elements * Bytes{sizeof(float)},
                .sums_there = true,
                .in_layers = true};
    place.accumulated_hook = [call](MemoryTiers::Event event) {
      if (event.call == call) {
        std::this_thread::sleep_for(std::chrono::milliseconds{20});  // until the next one waits
        throw IoError{"the disk is gone"};
      }
    };
    GradientFixture<float> gradients{place, mpi::Communicator::self()};
    EXPECT_THROW(gradients.step(), IoError);
  }
}

TEST(GradientAccumulator, ALayerOfWhichNothingIsHeldLeavesInOneCopy) {
  auto const world = mpi::Communicator::world();
  int const rounds = (micro_batches + world.size() - 1) / world.size();
  int copies = 0;
  GradientFixture<float> gradients{
      {.subgroup_chunks = 1,
       .emulation = link,
       .link = world.size() > 1 ? state::LinkKind::direct : state::LinkKind::usual,
       .held_room = 1,  // of no use to any
       .wrap =
           [&](std::unique_ptr<device::Device> inner) {
             return std::make_unique<CountingDevice>(std::move(inner), copies);
           }},
      mpi::Communicator::world()};
  gradients.step();
  EXPECT_EQ(copies, layers * rounds);
}

TEST(GradientAccumulator, HoldsNothingThatIsFlushedOrThatTheHostSees) {
  EXPECT_THROW((GradientFixture<float>{{.flush = true, .emulation = link, .held_room = KiB}}),
               PreconditionError);
  EXPECT_THROW((GradientFixture<float>{{.held_room = KiB}}), PreconditionError);
}

TEST(GradientAccumulator, NeedsMemoryToSendOnlyWhatTheHostDoesNotSee) {
  using state::Route;
  auto const host = [](int ranks, Route route) {
    return GradientAccumulator<bfloat16>::exchange_bytes({layout(), ranks}, 0, route);
  };
  auto const there = [](int ranks, Route route) {
    return GradientAccumulator<bfloat16>::device_bytes({layout(), ranks}, 0, route);
  };
  Bytes const layer = 7 * 4096 * 2;
  Bytes const received = 2 * 4 * 4096 * 2;
  EXPECT_EQ(host(1, Route::in_place), 0);
  EXPECT_EQ(host(1, Route::staged), 2 * layer);
  EXPECT_EQ(host(2, Route::in_place), received);
  EXPECT_EQ(host(2, Route::staged), 2 * (received + layer));
  EXPECT_EQ(host(2, Route::direct), 2 * received);
  EXPECT_EQ(there(2, Route::in_place), 0);
  EXPECT_EQ(there(1, Route::staged), 0);
  EXPECT_EQ(there(2, Route::staged), 0);
  EXPECT_EQ(there(2, Route::direct), received);
}

TEST(GradientAccumulator, TakesTheDeviceMemoryThatItSays) {
  EXPECT_EQ(GradientFixture<bfloat16>{{}}.device().used(), 0);
  for (auto const kind : state::every_link) {
    GradientFixture<bfloat16> gradients{{.emulation = link, .link = kind}};
    EXPECT_EQ(gradients.device().used(),
              GradientAccumulator<bfloat16>::device_bytes(gradients.map(), gradients.rank(),
                                                          gradients.link().route()));
  }
}

// Alone: other ranks' transfers would be waited for, too.
TEST(GradientAccumulator, ReturnsWhileTheGradientIsOnItsWayToTheHost) {
  constexpr std::int64_t elements = 7 * 4096;  // of layer 2, the largest
  constexpr double rate = 0.1e6;               // 1.1 s for that layer
  std::vector<std::vector<float>> brought;
  for (int layer = 0; layer < layers; ++layer) {
    brought.push_back(gradient_of<float>(0, layer));
  }
  GradientFixture<float> gradients{{.emulation = {.device_to_host = rate}},
                                   mpi::Communicator::self()};
  auto const add = [&](int layer) {
    return gradients->add(layer, brought[static_cast<std::size_t>(layer)]);
  };
  gradients->begin_step();
  gradients->begin_round(1, true);
  EXPECT_EQ(add(4), nullptr);  // none was before
  add(3)->wait();              // layer 4 has left
  Stopwatch const watch;
  auto const third = add(2);
  auto const fourth = add(1);  // behind layer 2, for which it does not wait
  EXPECT_LT(watch.elapsed(), Seconds{elements * 4 / rate});
  third->wait();
  fourth->wait();
  EXPECT_GE(watch.elapsed(), Seconds{elements * 4 / rate});
  EXPECT_EQ(add(0), nullptr);         // waits for all
  EXPECT_GT(gradients->norm(), 0.0);  // after the last add, as on any device
  gradients->end_round();
}

TEST(GradientAccumulator, ShowsInTheTraceWhatLeavesTheDevice) {
  ScratchDirectory const scratch;
  std::string const path =
      fmt::format("{}/trace-{}.json", scratch.path(), mpi::Communicator::world().rank());
  {
    trace::Trace trace{path, 0, "here"};
    GradientFixture<float> gradients{{.emulation = link, .trace = &trace}};
    gradients.step();
  }
  std::ifstream file{path};
  std::string const text{std::istreambuf_iterator<char>{file}, {}};
  EXPECT_THAT(text, testing::HasSubstr("gradients to host"));
}

}  // namespace
}  // namespace offstage::update
