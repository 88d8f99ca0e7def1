#include "plan/simulation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "plan/simulation_support.hpp"

namespace offstage::plan {
namespace {

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
                                .table_piece = 10.0 * number(1, 3),
                                .slabs = number(0, 1) * 3 + 3,
                                .table_slabs = 2,
                                .ahead = number(0, 1) == 1,
                                .tied = number(0, 1) == 1};
    work.vertical->slabs = work.vertical->ahead ? 6 : 3;
    if (int const tensors = static_cast<int>(work.rounds * (work.blocks() + 2));
        work.vertical->tensor > 0.0 && tensors > work.vertical->slabs) {
      work.vertical->staying = number(0, 1) * number(0, tensors - work.vertical->slabs - 1);
      work.vertical->slabs += work.vertical->staying;
    }
    for (auto& layer : work.layers) {
      layer.leaving = 0;
    }
    work.backward.erase(work.backward.begin());
    work.backward.pop_back();
    if (schedule.sums_on_device) {  // a layer is a block
      std::ranges::transform(work.layers, std::back_inserter(schedule.sum_blocks),
                             &LayerWork::begin);
      schedule.reserved_in_turn = number(0, 1) * std::min<std::int64_t>(schedule.held, 100);
    }
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
    EXPECT_LE(bound, found * (1 + 1e-9))
        << trial << words_of(least_time(machine, work, schedule).resource.kind);
    tightest = std::max(tightest, bound / found);
  }
  EXPECT_GT(tightest, 0.95);
}

TEST(Simulation, NothingIsQuickerThanTheBoundOfSlowStorage) {
  std::mt19937 random{43};
  double tightest = 0.0;
  int stored = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    auto [machine, work, schedule] = draw(random);
    for (PathRate& path : machine.rates.paths) {
      path.read /= 100.0;
      path.write /= 100.0;
    }
    schedule.activations_cached = static_cast<std::int64_t>(random() % 4);
    auto const bound = least_time(machine, work, schedule);
    double const found = simulate(machine, work, schedule, full_detail).step.count();
    EXPECT_LE(bound.step.count(), found * (1 + 1e-9)) << trial << words_of(bound.resource.kind);
    if (bound.resource == Resource{Kind::storage}) {
      ++stored;
      tightest = std::max(tightest, bound.step.count() / found);
    }
  }
  EXPECT_GT(stored, 200);
  EXPECT_GT(tightest, 0.95);
}

/// A step of several ranks, each of which has a part of every layer.
Drawn draw_ranks(std::mt19937& random) {
  auto drawn = draw(random);
  auto& [machine, work, schedule] = drawn;
  auto const number = [&](int low, int high) {
    return std::uniform_int_distribution{low, high}(random);
  };
  machine.rank_link = number(1, 100) * 20;
  work.ranks = number(2, 4);
  work.nodes = number(1, work.ranks);
  for (LayerWork& layer : work.layers) {
    layer.elements = work.ranks * layer.count;
  }
  work.row = number(0, 3) == 0 ? 2 : 1;
  work.micro_batches = work.row > 1 ? work.rounds * work.ranks
                                    : (work.rounds - 1) * work.ranks + number(1, work.ranks);
  schedule.direct = schedule.sums_on_device = number(0, 1) == 1;
  schedule.sum_blocks = schedule.direct ? schedule.sum_blocks : std::vector<std::int64_t>{};
  schedule.reserved_in_turn = schedule.sum_blocks.empty() ? 0 : schedule.reserved_in_turn;
  if (schedule.home == ParameterHome::device) {
    schedule.gathers_once = work.row > 1 || number(0, 1) == 1;
    schedule.layer_slots = schedule.gathers_once ? static_cast<int>(work.layers.size()) : 2;
  } else {
    work.row = 1;
  }
  return drawn;
}

TEST(Simulation, NorAreStepsOfSeveralRanks) {
  std::mt19937 random{43};
  double tightest = 0.0;
  for (int trial = 0; trial < 1000; ++trial) {
    auto const [machine, work, schedule] = draw_ranks(random);
    auto const bound = least_time(machine, work, schedule);
    double const found = simulate(machine, work, schedule, full_detail).step.count();
    EXPECT_LE(bound.step.count(), found * (1 + 1e-9)) << trial << words_of(bound.resource.kind);
    if (bound.resource == Resource{Kind::rank_link}) {
      tightest = std::max(tightest, bound.step.count() / found);
    }
  }
  EXPECT_GT(tightest, 0.95);
}

/// A step of a large model: many equal layers, subgroups and rounds.
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

TEST(Simulation, SendsThePartOfAVerticalSchedulesTensorsToStorageOfWhichItSimulatesFewerRounds) {
  std::mt19937 random{73};
  int vertical = 0;
  for (int trial = 0; trial < 120; ++trial) {
    Drawn drawn = draw_large(random);
    Workload& work = drawn.work;
    Schedule& schedule = drawn.schedule;
    if (!work.vertical || work.rounds <= 12) {
      continue;
    }
    ++vertical;
    work.vertical->tensor = 50.0;
    work.vertical->tied = vertical % 2 == 0;
    work.vertical->table = work.vertical->tied ? 2000.0 : 0.0;
    work.vertical->table_piece = 50.0;
    // None, all gradients, or a third of the inputs too.
    int const staying = static_cast<int>(work.rounds) * (vertical % 3) * (vertical % 3) * 3;
    work.vertical->slabs += staying - work.vertical->staying;
    work.vertical->staying = staying;
    schedule.buffers = schedule.gradient_buffers = 0;  // nothing else goes there
    schedule.home = ParameterHome::device;
    schedule.layer_slots = 0;
    schedule.activations_on_storage = true;
    // Nine of ten extents have a place in host memory.
    schedule.activations_cached =
        9 * (work.rounds * (work.blocks() + 2 + work.vertical->pieces()) - staying) / 10;
    auto const written = [&](Detail const& detail) {
      Bytes all = 0;
      for (PathUse const& path : simulate(drawn.machine, work, schedule, detail).paths) {
        all += path.written;
      }
      return static_cast<double>(all);
    };
    EXPECT_GT(written(full_detail), 0.0) << trial;
    EXPECT_NEAR(written({}) / written(full_detail), 1.0, 0.2) << trial;
  }
  EXPECT_GT(vertical, 10);
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
