#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "plan/machine.hpp"
#include "plan/workload.hpp"

namespace offstage::plan {

/// How long a resource is busy in a step.
struct ResourceUse {
  std::string name;  ///< "device", "path 1"
  Seconds busy{};
};

/// Bytes that a path moves in a step.
struct PathUse {
  Bytes read{}, written{};
};

/// Something that happened in a simulated step, in the words of a run's trace.
struct SimulatedEvent {
  std::string row, name;
  std::int64_t key = -1;  ///< layer, block or subgroup; -1: of none
  double begin{}, end{};  ///< seconds since the first step's begin
  double bytes = -1.0;    ///< -1: moves none
};

/// A step once caches have settled, the mean of one with either order of subgroups.
struct Prediction {
  Seconds step{};
  /// As the run counts them: backward has the wait for the update before in it, and update ends
  /// when the next forward may begin.
  Seconds forward{}, backward{}, update{};
  std::vector<ResourceUse> uses;  ///< busiest first; those that are idle left out
  std::vector<PathUse> paths;     ///< in the order of Machine's

  /// Nothing is busy: "nothing".
  [[nodiscard]] std::string bound() const { return uses.empty() ? "nothing" : uses.front().name; }
};

/// `often` of the steps are as `other`.
[[nodiscard]] Prediction mean(Prediction const& one, Prediction const& other, double often);

/// How much of a step is simulated at most, so that the time that it takes is bounded. What a step
/// has more is merged or follows from a shorter one: long steps repeat themselves.
struct Detail {
  std::int64_t rounds = 5;  ///< one after the other; beyond them time grows evenly
  /// Rounds of a vertical schedule; beyond them time grows evenly.
  std::int64_t rounds_in_layers = 12;
  std::int64_t subgroups = 256;  ///< beyond them neighbours are merged
  std::int64_t chunks = 2048;    ///< chunks of the shard, as they cross the link
};
/// Nothing is merged.
constexpr Detail full_detail{.rounds = std::numeric_limits<std::int64_t>::max(),
                             .rounds_in_layers = std::numeric_limits<std::int64_t>::max(),
                             .subgroups = std::numeric_limits<std::int64_t>::max(),
                             .chunks = std::numeric_limits<std::int64_t>::max()};

/// Simulates steps of a rank, event by event: products, copies, transfers, updates and sums queue
/// at the resources, and buffers, slots and slabs are taken and given back, as the run does it and
/// by the same deciders (update_order, deal_trips, TripOrder, ExtentCache, next_path,
/// SlotSchedule).
///
/// Source:      the rooms model, parameters, activations, update and tiers, whose waiting it
///              repeats.
/// Link:        a copy goes at the rate of both directions if the other one is in use when it
///              begins.
/// Paths:       half duplex: one transfer at a time; at most 64 MiB per turn.
/// Host memory: no queue; a step takes no less than all its traffic there would.
/// Not known:   what kernels that are no products take, and the launching thread. Ranks are alike.
/// Errors:      PreconditionError: sizes that do not fit together; no buffer where one is needed.
[[nodiscard]] Prediction simulate(Machine const& machine, Workload const& workload,
                                  Schedule const& schedule, Detail const& detail = {});

/// Events of a run's first four steps, or the first `most` of them; nothing is merged. Caches and
/// paths are then as the first versions leave them. Rows are as a trace's, but those of buffers
/// have no numbers ("state buffer"). Errors: as simulate.
[[nodiscard]] std::vector<SimulatedEvent> simulate_events(Machine const& machine,
                                                          Workload const& workload,
                                                          Schedule const& schedule,
                                                          std::size_t most);

/// A time that simulate does not go below, and which resource needs it: the busy time of each
/// resource if nothing waits for anything, of what is sure to go through it.
struct Bound {
  Seconds step{};
  std::string resource{};  ///< as in Prediction::uses; of paths "storage"
};
[[nodiscard]] Bound least_time(Machine const& machine, Workload const& workload,
                               Schedule const& schedule);

}  // namespace offstage::plan
