#include "plan/simulation.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "plan/simulation_support.hpp"

namespace offstage::plan {
namespace {

TEST(Simulation, AddsThePhasesWhereNothingOverlaps) {
  auto const found = simulate(one_a_second(), two_layers(), plain());
  EXPECT_NEAR(found.forward.count(), 2.0, 1e-9);
  EXPECT_NEAR(found.backward.count(), 4.0, 1e-9);
  EXPECT_NEAR(found.update.count(), 2.0, 1e-9);
  EXPECT_NEAR(found.step.count(), 8.0, 1e-9);
  EXPECT_EQ(found.uses.front().resource, Resource{Kind::device});
  EXPECT_NEAR(busy(found, {Kind::cpu_update}), 2.0, 1e-9);
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
  schedule.under_next_forward = true;
  schedule.order = UpdateOrder::ascending;
  auto const found = simulate(machine, two_layers(), schedule);
  // Computed until 0.8, 1.6 and 2.0, sent until 2.4, 4.0 and 4.8. The first layer, of two
  // subgroups, waits until 4.0, which is 2.0 after the update. The second one waits for nothing.
  EXPECT_NEAR(found.update.count(), 2.0, 1e-9);
  EXPECT_NEAR(found.forward.count(), 4.0, 1e-9);
  schedule.transfers = Transfers::blocking;
  schedule.under_next_forward = false;
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
  EXPECT_NEAR(busy(found, {Kind::path}), 6.0, 1e-9);
  // What stays in memory is neither read nor written.
  schedule.cached = 2;
  EXPECT_LT(busy(simulate(machine, two_layers(), schedule), {Kind::path}), 3.0);
  // All has a place: nothing is stored.
  schedule.cached = 3;
  EXPECT_EQ(busy(simulate(machine, two_layers(), schedule), {Kind::path}), 0.0);
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
  auto const events = simulate_events(machine, two_layers(), schedule, all_events);
  // They were made in ascending order, so that the first update descends and finds the last one.
  EXPECT_EQ(keys(events, "worker 0", "trip"),
            (std::vector<std::int64_t>{2, 1, 0, 0, 1, 2, 2, 1, 0, 0, 1, 2}));
  EXPECT_EQ(keys(events, "state buffer", "read"),
            (std::vector<std::int64_t>{1, 0, 1, 2, 1, 0, 1, 2}));
  EXPECT_EQ(keys(events, "update", "update"), keys(events, "worker 0", "trip"));
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
  schedule.order = UpdateOrder::ascending;
  EXPECT_NEAR(busy(simulate(machine, two_layers(), schedule), {Kind::path}), 6.0, 1e-9);
  schedule.order = UpdateOrder::alternate;
  EXPECT_LT(busy(simulate(machine, two_layers(), schedule), {Kind::path}), 3.0);
}

TEST(Simulation, TheDevicesShareIsUpdatedBesideTheCores) {
  auto machine = one_a_second();
  machine.rates.device_update = 100.0;
  auto schedule = plain();
  schedule.workers = 4;
  schedule.share = 0.5;
  auto const found = simulate(machine, two_layers(), schedule);
  EXPECT_NEAR(busy(found, {Kind::cpu_update}) + busy(found, {Kind::device_update}), 2.0, 1e-9);
  EXPECT_LT(found.update.count(), 1.3);
  schedule.share = 1.0;
  EXPECT_NEAR(busy(simulate(machine, two_layers(), schedule), {Kind::device_update}), 2.0, 1e-9);
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

TEST(Simulation, ATripThatWaitsForTheNormIsDealtAfterThoseThatDoNot) {
  auto machine = one_a_second();
  machine.rates.paths = {{.read = 100.0, .write = 1e9}};  // an extent of 1,200 bytes comes in 12 s
  Workload work;
  for (int i = 0; i < 4; ++i) {
    work.layers.push_back(
        {.forward = 1, .backward = 4, .elements = 100, .begin = 100 * i, .count = 100});
    work.subgroups.push_back({100 * i, 100});
  }
  work.forward = {0, 1, 2, 3};
  work.backward = {3, 2, 1, 0};
  auto schedule = plain();
  schedule.overlap = true;
  schedule.buffers = 1;
  schedule.cached = 2;  // of the lowest subgroups, which have no second version
  schedule.spare_slots = true;
  schedule.evict = Evict::highest;
  auto const events = simulate_events(machine, work, schedule, all_events);
  auto const find = [&](std::string const& row, std::string const& name, std::int64_t key) {
    return *std::ranges::find_if(events, [&](SimulatedEvent const& event) {
      return event.row == row && event.name == name && event.key == key;
    });
  };
  // Subgroup 3 has come after 12 s of backward and is updated after 13. By then subgroup 1 is
  // complete, and later than 2, but waits for the norm, which is known after 16.
  auto const backward = find("model", "backward", -1);
  EXPECT_NEAR(find("state buffer", "read", 2).begin, backward.begin + 13.0, 1e-3);
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
  EXPECT_NEAR(busy(found, {Kind::to_device}), 2.0, 1e-9);
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
    return busy(simulate(machine, work, schedule), {Kind::rank_link});
  };
  double parts = 0.0;  // of this rank
  for (auto const& layer : work.layers) {
    parts += static_cast<double>(work.working_bytes * layer.count);
  }
  double const gradients = sent(1);
  EXPECT_NEAR(sent(2), gradients + parts / 100.0, 1e-9);
  EXPECT_NEAR(sent(4), gradients + 3 * parts / 100.0, 1e-9);
}

/// Rows of rounds with one exchange each: a step of which a part is simulated has the exchanges of
/// all.
TEST(Simulation, LongStepsHaveTheirShareOfExchanges) {
  auto machine = one_a_second();
  machine.rank_link = 100.0;
  auto work = two_layers();
  work.ranks = 2;
  auto schedule = plain();
  schedule.gathers_once = true;
  for (std::int64_t const row : {1, 2, 3, 4, 8}) {
    work.row = row;
    work.rounds = 6 * row;
    work.micro_batches = work.rounds * work.ranks;
    auto const whole = simulate(machine, work, schedule, {.rounds = work.rounds});
    EXPECT_NEAR(simulate(machine, work, schedule).step.count(), whole.step.count(),
                1e-6 * whole.step.count())
        << "rows of " << row;
  }
}

}  // namespace
}  // namespace offstage::plan
