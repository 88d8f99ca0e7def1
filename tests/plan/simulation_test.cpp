#include "plan/simulation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "plan/virtual_time.hpp"
#include "plan/waiting_slabs.hpp"

namespace offstage::plan {
namespace {

/// The detail with which nothing is merged.
constexpr Detail full_detail{.rounds = std::numeric_limits<std::int64_t>::max(),
                             .rounds_in_layers = std::numeric_limits<std::int64_t>::max(),
                             .subgroups = std::numeric_limits<std::int64_t>::max(),
                             .chunks = std::numeric_limits<std::int64_t>::max()};

/// Two layers of 100 elements that compute for 1 s forward and 2 s backward, on three subgroups.
Workload two_layers() {
  Workload work;
  work.layers = {{.forward = 1, .backward = 2, .elements = 100, .begin = 0, .count = 100},
                 {.forward = 1, .backward = 2, .elements = 100, .begin = 100, .count = 100}};
  work.forward = {0, 1};
  work.backward = {1, 0};
  work.subgroups = {{0, 80}, {80, 80}, {160, 40}};
  return work;
}

/// Computes 1 operation a second, the cores update 100 elements, links and paths take no time.
Machine one_a_second() {
  Machine machine;
  machine.compute = 1.0;
  machine.rates.cpu_update = 100.0;
  return machine;
}

/// One trip at a time; nothing goes on under the next forward.
Schedule plain() {
  Schedule schedule;
  schedule.workers = 1;
  schedule.chunk = 1000;
  schedule.goes_on = false;
  return schedule;
}

double busy(Prediction const& prediction, std::string const& name) {
  auto const found = std::ranges::find(prediction.uses, name, &ResourceUse::name);
  return found == prediction.uses.end() ? 0.0 : found->busy.count();
}

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

TEST(WaitingSlabs, GiveWhatIsThereInVainOrLongest) {
  WaitingSlabs slabs{2, 4};
  ASSERT_TRUE(slabs.leave());
  int const first = slabs.make(0);
  int const second = slabs.make(1);
  EXPECT_NE(first, second);
  EXPECT_THROW((void)slabs.take(2), PreconditionError) << "both are in use";
  slabs.release(second);
  slabs.release(first);
  EXPECT_EQ(slabs.take(2), second) << "it was released first";
  EXPECT_EQ(slabs.find(1), WaitingSlabs::none);
  EXPECT_EQ(slabs.find(0), first);
  slabs.forget(second);
  EXPECT_EQ(slabs.take(3), second) << "nothing is there";
  EXPECT_THROW((void)slabs.find(4), PreconditionError);
  WaitingSlabs own{3, 3};
  EXPECT_FALSE(own.leave());
  EXPECT_EQ(own.make(2), 2) << "each has its own";
  EXPECT_EQ(own.make(2), 2);
}

TEST(Simulation, AddsThePhasesWhereNothingOverlaps) {
  auto const found = simulate(one_a_second(), two_layers(), plain());
  EXPECT_NEAR(found.forward.count(), 2.0, 1e-9);
  EXPECT_NEAR(found.backward.count(), 4.0, 1e-9);
  EXPECT_NEAR(found.update.count(), 2.0, 1e-9);
  EXPECT_NEAR(found.step.count(), 8.0, 1e-9);
  EXPECT_EQ(found.bound(), "the device");
  EXPECT_NEAR(busy(found, "updates on the cores"), 2.0, 1e-9);
}

TEST(Simulation, AGradientLeavesUnderTheNextLayersBackward) {
  auto machine = one_a_second();
  machine.rates.device_to_host = 100.0;  // 2 s a layer
  auto const found = simulate(machine, two_layers(), plain());
  // The last layer's is at 2 + 2, the first one's backward then; its gradient comes after that.
  EXPECT_NEAR(found.backward.count(), 6.0, 1e-9);
  machine.rates.device_to_host = 50.0;  // 4 s: from 2 to 6, and to 10
  EXPECT_NEAR(simulate(machine, two_layers(), plain()).backward.count(), 10.0, 1e-9);
}

TEST(Simulation, NewParametersGoOnUnderTheNextForward) {
  auto machine = one_a_second();
  machine.rates.host_to_device = 100.0;  // subgroups of 1.6, 1.6 and 0.8 s
  auto schedule = plain();
  schedule.workers = 3;
  schedule.goes_on = true;
  schedule.order = UpdateOrder::ascending;
  auto const found = simulate(machine, two_layers(), schedule);
  // Computed until 0.8, 1.6 and 2.0, sent until 2.4, 4.0 and 4.8. The first layer, of two
  // subgroups, waits until 4.0, which is 2.0 after the update. The second one waits for nothing.
  EXPECT_NEAR(found.update.count(), 2.0, 1e-9);
  EXPECT_NEAR(found.forward.count(), 4.0, 1e-9);
  schedule.transfers = Transfers::blocking;
  schedule.goes_on = false;
  // In turns: 2 s of updates and 4 s of copies.
  EXPECT_NEAR(simulate(machine, two_layers(), schedule).update.count(), 6.0, 1e-9);
}

TEST(Simulation, StorageIsReadAndWrittenInTurnOnAHalfDuplexPath) {
  auto machine = one_a_second();
  machine.rates.paths = {{1200.0, 600.0, false}};  // 0.01 s and 0.02 s an element
  auto schedule = plain();
  schedule.buffers = 1;
  // With one buffer all is in turns: 2 s read, 2 s computed, 4 s written.
  EXPECT_NEAR(simulate(machine, two_layers(), schedule).update.count(), 8.0, 1e-9);
  schedule.buffers = schedule.workers = 3;
  // Computation of two subgroups hides: 6 s of the path, and the last fetched is computed alone at
  // most.
  auto const found = simulate(machine, two_layers(), schedule);
  EXPECT_GE(found.update.count(), 6.0 - 1e-9);
  EXPECT_LE(found.update.count(), 6.8);
  EXPECT_NEAR(busy(found, "path 1"), 6.0, 1e-9);
  // What stays in memory is neither read nor written.
  schedule.cached = 2;
  EXPECT_LT(busy(simulate(machine, two_layers(), schedule), "path 1"), 3.0);
  // All has a place: nothing is stored.
  schedule.cached = 3;
  EXPECT_EQ(busy(simulate(machine, two_layers(), schedule), "path 1"), 0.0);
}

constexpr std::size_t all_events = 1'000'000;

std::vector<std::int64_t> keys(std::vector<SimulatedEvent> const& events, std::string const& row,
                               std::string const& name) {
  std::vector<std::int64_t> keys;
  for (SimulatedEvent const& event : events) {
    if (event.row == row && event.name == name) {
      keys.push_back(event.key);
    }
  }
  return keys;
}

TEST(Simulation, BeginsAsTheFirstVersionsLeaveCachesAndPaths) {
  auto machine = one_a_second();
  machine.rates.paths = {{1200.0, 600.0, false}};
  auto schedule = plain();
  schedule.buffers = 1;
  schedule.cached = 1;
  schedule.evict = Evict::oldest;
  schedule.spread = false;
  auto const events = simulate_events(machine, two_layers(), schedule, all_events);
  // They were made in ascending order, so that the first update descends and finds the last one.
  EXPECT_EQ(keys(events, "slot 0", "trip"),
            (std::vector<std::int64_t>{2, 1, 0, 0, 1, 2, 2, 1, 0, 0, 1, 2}));
  EXPECT_EQ(keys(events, "state buffer", "read"),
            (std::vector<std::int64_t>{1, 0, 1, 2, 1, 0, 1, 2}));
  EXPECT_EQ(keys(events, "update", "update"), keys(events, "slot 0", "trip"));
}

TEST(Simulation, RanksGatherALayerForEachOfItsUses) {
  auto work = two_layers();
  work.ranks = 2;
  work.micro_batches = 2;
  auto machine = one_a_second();
  machine.rank_link = 1e6;
  auto const events = simulate_events(machine, work, plain(), all_events);
  auto const gathered = keys(events, "parameters from ranks", "bring");
  ASSERT_EQ(gathered.size(), 16U) << "four steps";
  EXPECT_EQ(std::vector(gathered.begin(), gathered.begin() + 4),
            (std::vector<std::int64_t>{0, 1, 1, 0}));
}

TEST(Simulation, EventsEndWhereEnoughAreToldOf) {
  auto const machine = one_a_second();
  auto const all = simulate_events(machine, two_layers(), plain(), all_events);
  ASSERT_GT(all.size(), 20U);
  auto const some = simulate_events(machine, two_layers(), plain(), 10);
  ASSERT_GE(some.size(), 10U);
  ASSERT_LT(some.size(), all.size());
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(some[i].name, all[i].name);
    EXPECT_EQ(some[i].begin, all[i].begin);
  }
}

TEST(Simulation, AThirdGatheredLayerComesWhileTwoAreHeld) {
  auto work = two_layers();
  work.layers.clear();
  for (std::int64_t i = 0; i < 4; ++i) {
    work.layers.push_back(
        {.forward = 1, .backward = 2, .elements = 50, .begin = 25 * i, .count = 25});
  }
  work.layers[1].with_before = work.layers[3].with_before = true;  // both are held
  work.forward = {0, 1, 2, 3};
  work.backward = {3, 2, 1, 0};
  work.subgroups = {{0, 100}};
  work.ranks = 2;
  work.micro_batches = 2;
  auto machine = one_a_second();
  machine.rank_link = 50.0;
  auto schedule = plain();
  schedule.layer_slots = 2;
  auto const two = simulate(machine, work, schedule).step;
  schedule.layer_slots = 3;
  EXPECT_LT(simulate(machine, work, schedule).step, two);
}

TEST(Simulation, SaysWhatPathsMoveInAStep) {
  auto machine = one_a_second();
  machine.rates.paths = {{1200.0, 600.0, false}, {1200.0, 600.0, false}};
  auto schedule = plain();
  schedule.buffers = schedule.workers = 3;
  auto const found = simulate(machine, two_layers(), schedule);
  ASSERT_EQ(found.paths.size(), 2U);
  EXPECT_EQ(found.paths[0].read + found.paths[1].read, 200 * 12);
  EXPECT_EQ(found.paths[0].written + found.paths[1].written, 200 * 12);
}

/// What the device sums is in no extent until it leaves, after the last micro-batch.
TEST(Simulation, SumsOfTheDeviceAreWrittenOnce) {
  auto machine = one_a_second();
  machine.rates.paths = {{1e6, 1e6, false}};
  auto work = two_layers();
  work.rounds = 3;
  work.micro_batches = 3;
  auto schedule = plain();
  schedule.gradient_buffers = 1;
  auto const written = [&] {
    auto const events = simulate_events(machine, work, schedule, all_events);
    return keys(events, "gradient buffer", "write").size();
  };
  EXPECT_EQ(written(), 4U * 3 * 3);
  schedule.held = 200;
  schedule.sums_on_device = true;
  EXPECT_EQ(written(), 4U * 3);
}

TEST(Simulation, AnAscendingOrderThrashesTheOldestFirstCache) {
  auto machine = one_a_second();
  machine.rates.paths = {{1200.0, 600.0, false}};
  auto schedule = plain();
  schedule.buffers = 1;
  schedule.cached = 2;
  schedule.evict = Evict::oldest;
  schedule.spread = false;
  schedule.order = UpdateOrder::ascending;
  EXPECT_NEAR(busy(simulate(machine, two_layers(), schedule), "path 1"), 6.0, 1e-9);
  schedule.order = UpdateOrder::alternate;
  EXPECT_LT(busy(simulate(machine, two_layers(), schedule), "path 1"), 3.0);
}

TEST(Simulation, TheDevicesShareIsUpdatedBesideTheCores) {
  auto machine = one_a_second();
  machine.rates.device_update = 100.0;
  auto schedule = plain();
  schedule.workers = 4;
  schedule.share = 0.5;
  auto const found = simulate(machine, two_layers(), schedule);
  EXPECT_NEAR(busy(found, "updates on the cores") + busy(found, "updates on the device"), 2.0,
              1e-9);
  EXPECT_LT(found.update.count(), 1.3);
  schedule.share = 1.0;
  EXPECT_NEAR(busy(simulate(machine, two_layers(), schedule), "updates on the device"), 2.0, 1e-9);
}

TEST(Simulation, AnUpdateUnderBackwardHidesThere) {
  auto schedule = plain();
  schedule.overlap = true;
  schedule.spares = 3;
  schedule.spare_slots = true;
  auto const found = simulate(one_a_second(), two_layers(), schedule);
  // Subgroup 2 and 1 are complete when the layers are: at 2 and 4 s of backward; 0 at 4 as well. So
  // two of them, 1.6 s,
  // are updated after it, and the first layer waits for both.
  EXPECT_NEAR(found.update.count(), 0.0, 1e-9);
  EXPECT_NEAR(found.step.count(), 2.0 + 4.0 + 1.6, 1e-9);
  schedule.redone = true;
  EXPECT_GE(simulate(one_a_second(), two_layers(), schedule).step.count(), 8.0);
}

TEST(Simulation, StreamedLayersComeThroughTheirSlots) {
  auto machine = one_a_second();
  machine.rates.host_to_device = 200.0;  // 1 s a layer
  auto schedule = plain();
  schedule.stages = false;
  schedule.home = ParameterHome::host;
  schedule.layer_slots = 2;
  auto const found = simulate(machine, two_layers(), schedule);
  // Both layers stay in their slots for backward.
  EXPECT_NEAR(busy(found, "the link to the device"), 2.0, 1e-9);
  EXPECT_NEAR(found.forward.count(), 3.0, 1e-9);
  EXPECT_NEAR(found.backward.count(), 4.0, 1e-9);
}

TEST(Simulation, ParametersOfANodeComeFromOthersOnceInAStep) {
  auto machine = one_a_second();
  machine.rank_link = 100.0;
  auto work = two_layers();
  work.ranks = 4;
  work.rounds = 3;
  auto schedule = plain();
  schedule.stages = false;
  schedule.home = ParameterHome::node;
  schedule.layer_slots = 2;
  auto const sent = [&](int nodes) {
    work.nodes = nodes;
    return busy(simulate(machine, work, schedule), "the link between ranks");
  };
  double parts = 0.0;  // of this rank
  for (auto const& layer : work.layers) {
    parts += static_cast<double>(work.working_bytes * layer.count);
  }
  double const gradients = sent(1);
  EXPECT_NEAR(sent(2), gradients + parts / 100.0, 1e-9);
  EXPECT_NEAR(sent(4), gradients + 3 * parts / 100.0, 1e-9);
}

TEST(Simulation, ActivationsLeaveAndComeBackUnderOtherBlocksWork) {
  auto machine = one_a_second();
  machine.rates.host_to_device = machine.rates.device_to_host = 100.0;
  auto work = two_layers();
  work.working_bytes = 0;
  auto const one = work.layers[0];
  work.layers.assign(6, one);
  for (int i = 0; i < 6; ++i) {
    auto& layer = work.layers[static_cast<std::size_t>(i)];
    layer.begin = 100 * i;
    layer.leaving = i < 4 ? 50 : 0;  // 0.5 s; the last two stay in their slabs
  }
  work.forward = {0, 1, 2, 3, 4, 5};
  work.backward = {5, 4, 3, 2, 1, 0};
  work.subgroups = {{0, 600}};
  auto schedule = plain();
  schedule.stages = false;
  auto const found = simulate(machine, work, schedule);
  EXPECT_NEAR(found.forward.count(), 6.0, 1e-9);
  EXPECT_NEAR(found.backward.count(), 12.0, 1e-9);
  schedule.slabs = 1;
  for (std::size_t i = 0; i < 5; ++i) {
    work.layers[i].leaving = 50;
  }
  auto const serial = simulate(machine, work, schedule);
  EXPECT_NEAR(serial.forward.count(), 6.0 + 5 * 0.5, 1e-9);
  EXPECT_NEAR(serial.backward.count(), 12.0 + 5 * 0.5, 1e-9);
}

/// An embedding, three blocks that compute 1 s forward and 2 s backward, and a head of 3 s; two
/// micro-batches that pass each layer together.
Workload three_blocks() {
  Workload work;
  for (int i = 0; i < 5; ++i) {
    bool const block = i > 0 && i < 4;
    work.layers.push_back({.forward = block ? 1.0 : (i == 4 ? 3.0 : 0.0),
                           .backward = block ? 2.0 : 0.0,
                           .elements = 100,
                           .begin = 100 * i,
                           .count = 100});
    work.forward.push_back(i);
  }
  work.backward = {3, 2, 1};
  work.subgroups = {{0, 300}, {300, 200}};
  work.rounds = work.micro_batches = 2;
  work.vertical = WaitingWork{};
  return work;
}

TEST(Simulation, AVerticalScheduleBringsALayerTwiceAStep) {
  auto machine = one_a_second();
  machine.compute = 1e9;
  machine.rates.cpu_update = 1e9;
  machine.rates.host_to_device = 200.0;  // 1 s a layer
  auto schedule = plain();
  schedule.stages = false;
  schedule.home = ParameterHome::host;
  schedule.layer_slots = 2;
  auto work = three_blocks();
  // Five layers in forward; in backward two blocks, as the last one is still in its slot.
  double const once = busy(simulate(machine, work, schedule), "the link to the device");
  EXPECT_NEAR(once, 7.0, 1e-6);
  work.rounds = work.micro_batches = 20;
  EXPECT_NEAR(busy(simulate(machine, work, schedule, full_detail), "the link to the device"), 7.0,
              1e-6);
  work.vertical = std::nullopt;
  // Micro-batch after micro-batch; the first block is still there when the second one begins.
  EXPECT_NEAR(busy(simulate(machine, work, schedule, full_detail), "the link to the device"),
              7.0 + 19 * 6.0, 1e-6);
}

TEST(Simulation, AVerticalScheduleComputesWhatAHorizontalOneDoes) {
  auto work = three_blocks();
  auto const vertical = simulate(one_a_second(), work, plain());
  EXPECT_NEAR(vertical.forward.count(), 2 * (3 * 1.0 + 3.0), 1e-9) << "the head is part of it";
  EXPECT_NEAR(vertical.backward.count(), 2 * 3 * 2.0, 1e-9);
  work.vertical = std::nullopt;
  EXPECT_NEAR(simulate(one_a_second(), work, plain()).step.count(), vertical.step.count(), 1e-9);
}

TEST(Simulation, TensorsOfAVerticalScheduleLeaveAsOftenAsTheyAreMade) {
  auto machine = one_a_second();
  machine.rates.host_to_device = machine.rates.device_to_host = 1000.0;
  auto schedule = plain();
  schedule.stages = false;
  auto work = three_blocks();
  work.working_bytes = 0;
  work.rounds = work.micro_batches = 8;
  work.vertical = WaitingWork{.tensor = 100.0, .slabs = 6};
  auto const found = simulate(machine, work, schedule);
  // Four inputs of eight micro-batches, and as many gradients of them.
  EXPECT_NEAR(busy(found, "the link from the device"), 8 * (4 + 4) * 0.1, 1e-9);
  // Some of what comes back is there still, at most as many as slabs in each of seven passes.
  double const back = busy(found, "the link to the device");
  double const all = 8 * (4 + 3 + 1 + 3) * 0.1;  // read in forward and head; in backward with dx
  EXPECT_LE(back, all);
  EXPECT_GE(back, all - 11 * 6 * 0.1);
  EXPECT_GT(back, 0.0);
  // Most of it under other micro-batches' work.
  double const in_turn = 8 * (3 * 3.0 + 3.0) + 5.0;
  EXPECT_LE(found.step.count(), in_turn + 1.5);
  work.vertical->ahead = false;
  work.vertical->slabs = 3;
  EXPECT_GT(simulate(machine, work, schedule).step.count(), in_turn + 4.0);
}

// The same blocks as two layers each: what leaves goes with the upper one, and a slab is free when
// the lower one's backward is over.
TEST(Simulation, LayersOfABlockHaveASlabTogether) {
  auto machine = one_a_second();
  machine.rates.host_to_device = machine.rates.device_to_host = 100.0;
  for (int const slabs : {1, 2}) {
    auto whole = two_layers();
    whole.working_bytes = 0;
    auto const one = whole.layers[0];
    whole.layers.assign(4, one);
    auto halves = whole;
    halves.layers.clear();
    halves.layers_per_block = 2;
    whole.forward.clear();
    halves.forward.clear();
    for (int i = 0; i < 4; ++i) {
      auto& block = whole.layers[static_cast<std::size_t>(i)];
      block.begin = 100 * i;
      block.leaving = i < 4 - slabs ? 50 : 0;
      auto half = block;
      half.forward = block.forward / 2;
      half.backward = block.backward / 2;
      half.elements = half.count = 50;
      half.leaving = 0;
      halves.layers.push_back(half);
      half.begin += 50;
      half.leaving = block.leaving;
      halves.layers.push_back(half);
      whole.forward.push_back(i);
      halves.forward.insert(halves.forward.end(), {2 * i, 2 * i + 1});
    }
    for (Workload* const work : {&whole, &halves}) {
      work->backward.assign(work->forward.rbegin(), work->forward.rend());
      work->subgroups = {{0, 400}};
    }
    auto schedule = plain();
    schedule.stages = false;
    schedule.slabs = slabs;
    auto const expected = simulate(machine, whole, schedule);
    auto const found = simulate(machine, halves, schedule);
    EXPECT_NEAR(found.forward.count(), expected.forward.count(), 1e-9) << slabs;
    EXPECT_NEAR(found.backward.count(), expected.backward.count(), 1e-9) << slabs;
  }
}

// Layer 0 comes in 1 s to the slot of layer 2, after that one's backward: under layer 1's.
TEST(Simulation, BackwardWaitsForTheLayerBeforeWhereItIsComputedAgain) {
  auto machine = one_a_second();
  machine.rates.host_to_device = 200.0;
  auto work = two_layers();
  work.layers.push_back(work.layers[1]);
  work.layers[2].begin = 200;
  work.forward = {0, 1, 2};
  work.backward = {2, 1, 0};
  work.subgroups = {{0, 300}};
  auto schedule = plain();
  schedule.stages = false;
  schedule.home = ParameterHome::host;
  schedule.layer_slots = 2;
  auto const backward = [&] { return simulate(machine, work, schedule).backward.count(); };
  EXPECT_NEAR(backward(), 6.0, 1e-9);
  work.layers[2].with_before = true;  // layer 1 is there
  EXPECT_NEAR(backward(), 6.0, 1e-9);
  work.layers[1].with_before = true;
  EXPECT_NEAR(backward(), 7.0, 1e-9);
}

struct Drawn {
  Machine machine;
  Workload work;
  Schedule schedule;
};

Drawn draw(std::mt19937& random) {
  auto const number = [&](int low, int high) {
    return std::uniform_int_distribution{low, high}(random);
  };
  Drawn drawn;
  auto& [machine, work, schedule] = drawn;
  machine.compute = number(1, 9);
  machine.rates.cpu_update = number(20, 200);
  machine.rates.device_update = number(20, 400);
  machine.rates.host_to_device = number(100, 2000);
  machine.rates.device_to_host = number(100, 2000);
  machine.host_sum = number(0, 1) * number(500, 2000);
  for (int path = number(1, 3); path > 0; --path) {
    machine.rates.paths.push_back({static_cast<double>(number(300, 3000)),
                                   static_cast<double>(number(300, 3000)), number(0, 1) == 1});
  }
  int const layers = number(2, 8);
  for (int i = 0; i < layers; ++i) {
    work.layers.push_back({.forward = static_cast<double>(number(0, 4)),
                           .backward = static_cast<double>(number(0, 8)),
                           .elements = 100,
                           .begin = 100 * i,
                           .count = 100,
                           .leaving = i + 2 < layers ? number(0, 1) * 100 : 0});
    work.forward.push_back(i);
  }
  work.backward.assign(work.forward.rbegin(), work.forward.rend());
  std::int64_t const size = number(30, 250);
  for (std::int64_t begin = 0; begin < 100 * layers; begin += size) {
    work.subgroups.push_back({begin, std::min(size, 100 * layers - begin)});
  }
  work.rounds = number(1, 3);
  work.gradient_bytes = number(1, 2) * 2;
  schedule.share = number(0, 4) / 4.0;
  schedule.overlap = number(0, 1) == 1;
  schedule.redone = number(0, 3) == 0;
  schedule.order = number(0, 1) == 1 ? UpdateOrder::alternate : UpdateOrder::ascending;
  schedule.workers = number(1, 5);
  schedule.buffers = number(0, 1) * number(1, 4);
  schedule.cached = number(0, static_cast<int>(work.subgroups.size()));
  schedule.spare_slots = schedule.overlap;
  schedule.spares = number(0, 3);
  schedule.evict = number(0, 1) == 1 ? Evict::farthest : Evict::oldest;
  schedule.gradient_buffers = number(0, 1) * number(1, 3);
  schedule.flush_fp32 = number(0, 5) == 0;
  schedule.chunk = number(20, 300);
  schedule.held = number(0, 1) * number(0, 800);
  schedule.sums_on_device = number(0, 1) == 1;
  schedule.home = static_cast<ParameterHome>(number(0, 3));
  schedule.layer_slots = schedule.home == ParameterHome::device ? 0 : number(2, 4);
  schedule.parameter_buffers = number(2, 4);
  schedule.parameters_ahead = schedule.parameter_buffers - 1;
  schedule.stages = schedule.home == ParameterHome::device;
  schedule.slabs = number(1, 2);
  schedule.activations_on_storage = number(0, 1) == 1;
  schedule.activation_readers = number(1, 2);
  if (number(0, 2) == 0 && layers > 2) {
    work.rounds = number(1, 6);
    work.vertical = WaitingWork{.tensor = number(0, 1) * 50.0,
                                .table = number(0, 1) * 30.0,
                                .slabs = number(0, 1) * 3 + 3,
                                .table_slabs = 2,
                                .ahead = number(0, 1) == 1,
                                .tied = number(0, 1) == 1};
    work.vertical->slabs = work.vertical->ahead ? 6 : 3;
    for (auto& layer : work.layers) {
      layer.leaving = 0;
    }
    work.backward.erase(work.backward.begin());
    work.backward.pop_back();
  }
  work.micro_batches = work.rounds;
  return drawn;
}

TEST(Simulation, NothingIsQuickerThanTheBoundOfItsBusiestResource) {
  std::mt19937 random{41};
  double tightest = 0.0;
  for (int trial = 0; trial < 1000; ++trial) {
    auto const [machine, work, schedule] = draw(random);
    double const bound = least_time(machine, work, schedule).step.count();
    double const found = simulate(machine, work, schedule, full_detail).step.count();
    EXPECT_LE(bound, found * (1 + 1e-9)) << trial << least_time(machine, work, schedule).resource;
    tightest = std::max(tightest, bound / found);
  }
  EXPECT_GT(tightest, 0.95);
}

/// As large models have it: many equal layers, subgroups and rounds.
Drawn draw_large(std::mt19937& random) {
  auto drawn = draw(random);
  auto& [machine, work, schedule] = drawn;
  auto const layer = work.layers[1];
  std::size_t const layers = 40;
  work.layers.assign(layers, layer);
  work.forward.clear();
  work.backward.clear();
  for (std::size_t i = 0; i < layers; ++i) {
    work.layers[i].begin = 100 * static_cast<std::int64_t>(i);
    work.forward.push_back(static_cast<int>(i));
    bool const inner = i > 0 && i + 1 < layers;
    if (!work.vertical || inner) {
      work.backward.insert(work.backward.begin(), static_cast<int>(i));
    }
    if (i + 2 >= layers) {
      work.layers[i].leaving = 0;
    }
  }
  work.subgroups.clear();
  for (std::int64_t begin = 0; begin < 4000; begin += 5) {
    work.subgroups.push_back({begin, 5, begin >= 3500});
  }
  work.rounds = work.micro_batches = std::uniform_int_distribution{8, 40}(random);
  schedule.chunk = 1;
  schedule.cached = std::uniform_int_distribution{0, 800}(random);
  schedule.spares = schedule.cached / 2;
  schedule.gradients_cached = std::uniform_int_distribution{0, 800}(random);
  return drawn;
}

TEST(Simulation, IsNearTheWholeOfALargeStepWhereItTakesAPartForIt) {
  std::mt19937 random{71};
  std::vector<double> errors;
  for (int trial = 0; trial < 30; ++trial) {
    auto const [machine, work, schedule] = draw_large(random);
    double const whole = simulate(machine, work, schedule, full_detail).step.count();
    double const part = simulate(machine, work, schedule).step.count();
    errors.push_back(std::abs(part / whole - 1.0));
    EXPECT_LT(errors.back(), 0.1) << trial;
  }
  std::ranges::sort(errors);
  EXPECT_LT(errors[errors.size() / 2], 0.02);
}

TEST(Simulation, TakesNoLessThanTheBusiestResourceAndNoMoreThanAllInTurn) {
  std::mt19937 random{17};
  for (int trial = 0; trial < 400; ++trial) {
    auto const [machine, work, schedule] = draw(random);
    auto const found = simulate(machine, work, schedule);
    double sum = 0.0;
    for (auto const& use : found.uses) {
      sum += use.busy.count();
    }
    ASSERT_GT(found.step.count(), 0.0) << trial;
    EXPECT_LE(found.uses.front().busy.count(), found.step.count() * (1 + 1e-9)) << trial;
    EXPECT_LE(found.step.count(), sum * (1 + 1e-9) + 1e-9) << trial;
    EXPECT_NEAR((found.forward + found.backward + found.update).count(), found.step.count(), 1e-9);
  }
}

TEST(Simulation, AMachineThatIsTwiceAsFastTakesHalfTheTime) {
  std::mt19937 random{5};
  for (int trial = 0; trial < 100; ++trial) {
    auto const [machine, work, schedule] = draw(random);
    auto fast = machine;
    for (double* rate :
         {&fast.compute, &fast.host_sum, &fast.rates.cpu_update, &fast.rates.device_update,
          &fast.rates.host_to_device, &fast.rates.device_to_host}) {
      *rate *= 2.0;
    }
    for (auto& path : fast.rates.paths) {
      path.read *= 2.0;
      path.write *= 2.0;
    }
    EXPECT_NEAR(simulate(fast, work, schedule).step.count() * 2.0,
                simulate(machine, work, schedule).step.count(), 1e-9)
        << trial;
  }
}

/// Queues in order of arrival may lose a little where something comes sooner (Graham's anomaly),
/// never much.
TEST(Simulation, AFasterResourceCostsNothing) {
  std::mt19937 random{23};
  for (int trial = 0; trial < 200; ++trial) {
    auto const [machine, work, schedule] = draw(random);
    double const before = simulate(machine, work, schedule).step.count();
    for (double Machine::*rate : {&Machine::compute, &Machine::host_sum}) {
      auto fast = machine;
      fast.*rate *= 1.5;
      EXPECT_LE(simulate(fast, work, schedule).step.count(), 1.25 * before) << trial;
    }
    auto all = machine;
    all.compute *= 1000;
    all.rates.cpu_update *= 1000;
    all.rates.device_update *= 1000;
    EXPECT_LE(simulate(all, work, schedule).step.count(), 1.25 * before) << trial;
  }
}

}  // namespace
}  // namespace offstage::plan
