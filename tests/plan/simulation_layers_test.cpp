#include "plan/simulation.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <optional>

#include "plan/simulation_support.hpp"

namespace offstage::plan {
namespace {

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
  double const once = busy(simulate(machine, work, schedule), {Kind::to_device});
  EXPECT_NEAR(once, 7.0, 1e-6);
  work.rounds = work.micro_batches = 20;
  EXPECT_NEAR(busy(simulate(machine, work, schedule, full_detail), {Kind::to_device}), 7.0, 1e-6);
  work.vertical = std::nullopt;
  // Micro-batch after micro-batch; the first block is still there when the second one begins.
  EXPECT_NEAR(busy(simulate(machine, work, schedule, full_detail), {Kind::to_device}),
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
  EXPECT_NEAR(busy(found, {Kind::to_host}), 8 * (4 + 4) * 0.1, 1e-9);
  // Some of what comes back is there still, at most as many as slabs in each of seven passes.
  double const back = busy(found, {Kind::to_device});
  double const all = 8 * (4 + 3 + 1 + 3) * 0.1;  // read in forward and head; in backward with dx
  EXPECT_LE(back, all);
  EXPECT_GE(back, all - 11 * 6 * 0.1);
  EXPECT_GT(back, 0.0);
  // Most of it under other micro-batches' work.
  double const in_turn = 8 * (3 * 3.0 + 3.0) + 5.0;
  EXPECT_LE(found.step.count(), in_turn + 1.5);
  work.vertical->staying = 8 + 10;  // the gradients, and as many inputs
  work.vertical->slabs = 6 + 8 + 10;
  auto const some = simulate(machine, work, schedule);
  EXPECT_NEAR(busy(some, {Kind::to_host}), (8 * 4 - 10) * 0.1, 1e-9);
  EXPECT_LE(busy(some, {Kind::to_device}), back - (8 * 3 - 6) * 0.1) << "but for six slabs";
  EXPECT_LE(least_time(machine, work, schedule).step, some.step);
  work.vertical->staying = 0;
  work.vertical->ahead = false;
  work.vertical->slabs = 3;
  EXPECT_GT(simulate(machine, work, schedule).step.count(), in_turn + 4.0);
}

// An MLP's gradient takes 3 s to leave, attention's one. Of the 3 s attention's backward takes one,
// and what of the next block is computed again another.
TEST(Simulation, WithABufferForAttentionAnMlpsGradientLeavesUnderAllOfABlocksBackward) {
  auto machine = one_a_second();
  machine.rates.device_to_host = 200.0;
  Workload work;
  constexpr int blocks = 3;
  work.layers.emplace_back();
  for (int i = 0; i < blocks; ++i) {
    work.layers.push_back({.backward = 1.0, .elements = 100, .begin = 400 * i, .count = 100});
    work.layers.push_back(
        {.backward = 2.0, .recompute = 1.0, .elements = 300, .begin = 400 * i + 100, .count = 300});
  }
  work.layers.emplace_back();
  work.layers_per_block = 2;
  work.subgroups = {{0, blocks * 400}};
  auto const backward = [&] { return simulate(machine, work, plain()).backward.count(); };
  double const tail = 3.0;  // until the last gradients have left
  EXPECT_NEAR(backward(), blocks * 4.0 + (blocks - 1) * 1.0 + tail, 1e-9);
  work.attention_buffer = true;
  EXPECT_NEAR(backward(), blocks * 4.0 + tail, 1e-9);
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

}  // namespace
}  // namespace offstage::plan
