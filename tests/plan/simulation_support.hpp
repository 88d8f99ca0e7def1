#pragma once

#include <algorithm>
#include <limits>
#include <string>

#include "plan/simulation.hpp"

/// Small workloads, machines and schedules whose times can be reckoned by hand.
namespace offstage::plan {

/// The detail with which nothing is merged.
inline constexpr Detail full_detail{.rounds = std::numeric_limits<std::int64_t>::max(),
                                    .rounds_in_layers = std::numeric_limits<std::int64_t>::max(),
                                    .subgroups = std::numeric_limits<std::int64_t>::max(),
                                    .chunks = std::numeric_limits<std::int64_t>::max()};

/// Two layers of 100 elements that compute for 1 s forward and 2 s backward, on three subgroups.
inline Workload two_layers() {
  Workload work;
  work.layers = {{.forward = 1, .backward = 2, .elements = 100, .begin = 0, .count = 100},
                 {.forward = 1, .backward = 2, .elements = 100, .begin = 100, .count = 100}};
  work.forward = {0, 1};
  work.backward = {1, 0};
  work.subgroups = {{0, 80}, {80, 80}, {160, 40}};
  return work;
}

/// Computes 1 operation a second, the cores update 100 elements, links and paths take no time.
inline Machine one_a_second() {
  Machine machine;
  machine.compute = 1.0;
  machine.rates.cpu_update = 100.0;
  return machine;
}

/// One trip at a time; nothing goes on under the next forward.
inline Schedule plain() {
  Schedule schedule;
  schedule.workers = 1;
  schedule.chunk = 1000;
  schedule.under_next_forward = false;
  return schedule;
}

using Kind = Resource::Kind;

inline double busy(Prediction const& prediction, Resource const& resource) {
  auto const found = std::ranges::find(prediction.uses, resource, &ResourceUse::resource);
  return found == prediction.uses.end() ? 0.0 : found->busy.count();
}

/// An embedding, three blocks that compute 1 s forward and 2 s backward, and a head of 3 s; two
/// micro-batches that pass each layer together.
inline Workload three_blocks() {
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

}  // namespace offstage::plan
