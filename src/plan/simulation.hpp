#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "plan/machine.hpp"
#include "plan/resource.hpp"
#include "plan/workload.hpp"

namespace offstage::plan {

/// Time for which a resource is busy in a step.
struct ResourceUse {
  Resource resource;
  Seconds busy{};
};

/// Bytes that a path moves in a step.
struct PathUse {
  Bytes read{}, written{};
};

/// An event of a simulated step, in the words of a run's trace.
struct SimulatedEvent {
  std::string row, name;
  std::int64_t key = -1;  ///< layer, block or subgroup; -1: none
  double begin{}, end{};  ///< seconds since the first step's begin
  double bytes = -1.0;    ///< -1: the event moves none
};

/// Times of a step once caches have settled: the mean of two steps, one with each order of
/// subgroups.
struct Prediction {
  Seconds step{};
  /// Times as a run counts them: backward includes the wait for the update before, and update ends
  /// when the next forward may begin.
  Seconds forward{}, backward{}, update{};
  std::vector<ResourceUse> uses;  ///< busiest first, without idle ones
  std::vector<PathUse> paths;     ///< in the order of Machine's paths
  /// Kinds, of sums and rank_link, that the step uses without a known rate: as if they took no
  /// time.
  std::vector<Resource::Kind> untimed{};
};

/// The mean over steps of which the part `often` is as `other`.
[[nodiscard]] Prediction mean(Prediction const& one, Prediction const& other, double often);

/// Limits of the part of a step that is simulated, so that the simulation's time is bounded. The
/// rest of a longer step is merged, or extrapolated from shorter ones, because long steps repeat
/// themselves.
struct Detail {
  std::int64_t rounds = 5;  ///< rounds one after the other; beyond them time grows evenly
  /// Rounds of a vertical schedule; beyond them time grows evenly.
  std::int64_t rounds_in_layers = 12;
  std::int64_t subgroups = 256;  ///< beyond them neighbours are merged
  /// Chunks of the shard that cross the link; beyond them they are merged.
  std::int64_t chunks = 2048;
};

/// Simulates steps of a rank, event by event. Products, copies, transfers, updates and sums queue
/// at the resources. Buffers, slots and slabs are taken and given back as in the run, and by the
/// same deciders (update_order, deal_trips, TripOrder, ExtentCache, next_path, LayerSlots).
///
/// Source:      the rooms model, parameters, activations, update and tiers, whose waiting it
///              repeats.
/// Link:        a copy goes at the rate of both directions if the other one is in use when it
///              begins.
/// Paths:       half duplex: one transfer at a time; at most 64 MiB per turn.
/// Host memory: no queue; a step takes no less than all its traffic there would.
/// Not known:   the time of kernels that are no products, and of the launching thread. Ranks are
///              alike.
/// Errors:      PreconditionError: sizes that do not fit together; a buffer is needed and there is
///              none.
[[nodiscard]] Prediction simulate(Machine const& machine, Workload const& workload,
                                  Schedule const& schedule, Detail const& detail = {});

/// Events of a run's first four steps, or the first `most` of them; nothing is merged. Caches and
/// paths begin as the first versions leave them. Rows are a trace's, but those of buffers have no
/// numbers ("state buffer").
/// Errors: as simulate.
[[nodiscard]] std::vector<SimulatedEvent> simulate_events(Machine const& machine,
                                                          Workload const& workload,
                                                          Schedule const& schedule,
                                                          std::size_t most);

/// A lower bound of simulate's time, and the resource that needs it. It is the longest busy time of
/// a resource with the work that surely goes through it, if nothing waits for anything.
struct Bound {
  Seconds step{};
  Resource resource{};  ///< the paths together are Kind::storage
};
[[nodiscard]] Bound least_time(Machine const& machine, Workload const& workload,
                               Schedule const& schedule);

}  // namespace offstage::plan
