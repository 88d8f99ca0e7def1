#include "plan/simulation.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/units.hpp"
#include "plan/simulated_step.hpp"

namespace offstage::plan {
namespace {

/// Rounds of a row that are simulated as they are. An exchange after more rounds hardly shows, and
/// a row as long as that would be simulated round by round.
constexpr std::int64_t longest_row = 64;

/// Difference in rounds of the two simulated steps.
constexpr std::int64_t horizontal_difference = 2;
constexpr std::int64_t vertical_difference = 4;

/// A step of fewer and larger subgroups and chunks.
struct Coarse {
  Machine machine;
  Workload work;
  Schedule schedule;
};

/// Scales a count out of `of` things to the `now` things that stand for them.
std::int64_t scaled(std::int64_t count, std::int64_t of, std::int64_t now) {
  if (count >= of) {
    return count - of + now;
  }
  double const share = static_cast<double>(count) / static_cast<double>(of);
  return std::min<std::int64_t>(now - 1, std::llround(share * static_cast<double>(now)));
}

Coarse coarse(Machine const& machine, Workload const& work, Schedule const& schedule,
              Detail const& detail) {
  Coarse result{machine, work, schedule};
  auto const all = std::ssize(work.subgroups);
  auto const waiting = std::ranges::count(work.subgroups, false, &SubgroupWork::resident);
  if (all > detail.subgroups) {
    std::int64_t const merged = ceil_div(all, detail.subgroups);
    result.machine.path_turn *= static_cast<double>(merged);  // a merged extent takes as many turns
    auto& subgroups = result.work.subgroups;
    subgroups.clear();
    std::int64_t run = 0;
    for (SubgroupWork const& each : work.subgroups) {
      bool const fits = run > 0 && run < merged && subgroups.back().resident == each.resident;
      if (fits) {
        subgroups.back().elements += each.elements;
        ++run;
      } else {
        subgroups.push_back(each);
        run = 1;
      }
    }
    auto const now = std::ssize(subgroups);
    auto const waiting_now = std::ranges::count(subgroups, false, &SubgroupWork::resident);
    result.schedule.cached = scaled(schedule.cached, waiting, waiting_now);
    result.schedule.spares = scaled(schedule.spares, waiting, waiting_now);
    result.schedule.gradients_cached = scaled(schedule.gradients_cached, all, now);
  }
  std::int64_t elements = 0;
  for (SubgroupWork const& each : work.subgroups) {
    elements += each.elements;
  }
  if (schedule.chunk > 0) {  // no chunk is an error, which simulated steps report
    result.schedule.chunk = std::max(schedule.chunk, elements / detail.chunks);
  }
  return result;
}

/// A step with so many rounds, the last of which is as full as the whole step's last. What waits in
/// a vertical schedule waits until its end: host memory has places for the same part of the fewer.
Prediction simulate_rounds(Coarse step, std::int64_t rounds) {
  if (step.work.vertical && rounds < step.work.rounds) {
    WaitingWork& waiting = *step.work.vertical;
    std::int64_t const of_round = step.work.blocks() + 2 + waiting.pieces();
    auto const staying =
        static_cast<int>(scaled(waiting.staying, step.work.rounds * of_round, rounds * of_round));
    step.schedule.activations_cached =
        scaled(step.schedule.activations_cached, step.work.rounds * of_round - waiting.staying,
               rounds * of_round - staying);
    waiting.slabs += staying - waiting.staying;
    waiting.staying = staying;
  }
  step.work.micro_batches -= (step.work.rounds - rounds) * step.work.ranks;
  step.work.rounds = rounds;
  return SimulatedSteps{step.machine, step.work, step.schedule}.run();
}

void sort(std::vector<ResourceUse>& uses) {
  std::ranges::stable_sort(uses, std::ranges::greater{}, &ResourceUse::busy);
}

Seconds busy(Prediction const& prediction, Resource const& resource) {
  auto const found = std::ranges::find(prediction.uses, resource, &ResourceUse::resource);
  return found == prediction.uses.end() ? Seconds{} : found->busy;
}

/// Extrapolates from two steps of fewer rounds. Busy times grow evenly; a step takes no less than
/// the longest.
Prediction extrapolated(Prediction const& shorter, Prediction const& longer, double factor) {
  auto const beyond = [&](Seconds a, Seconds b) { return b + factor * std::max(Seconds{}, b - a); };
  Prediction result{.step = {},
                    .forward = beyond(shorter.forward, longer.forward),
                    .backward = beyond(shorter.backward, longer.backward),
                    .update = longer.update,
                    .uses = longer.uses,
                    .paths = longer.paths,
                    .untimed = longer.untimed};
  for (ResourceUse& use : result.uses) {
    use.busy = beyond(busy(shorter, use.resource), use.busy);
  }
  for (std::size_t i = 0; i < std::min(shorter.paths.size(), longer.paths.size()); ++i) {
    auto const more = [&](Bytes a, Bytes b) {
      return b + static_cast<Bytes>(factor * static_cast<double>(std::max<Bytes>(0, b - a)));
    };
    result.paths[i] = {more(shorter.paths[i].read, longer.paths[i].read),
                       more(shorter.paths[i].written, longer.paths[i].written)};
  }
  sort(result.uses);
  result.step = result.forward + result.backward + result.update;
  if (!result.uses.empty() && result.uses.front().busy > result.step) {
    result.backward += result.uses.front().busy - result.step;
    result.step = result.uses.front().busy;
  }
  return result;
}

}  // namespace

Prediction mean(Prediction const& one, Prediction const& other, double often) {
  auto const between = [&](Seconds a, Seconds b) { return (1.0 - often) * a + often * b; };
  Prediction result{.step = between(one.step, other.step),
                    .forward = between(one.forward, other.forward),
                    .backward = between(one.backward, other.backward),
                    .update = between(one.update, other.update),
                    .uses = one.uses,
                    .paths = one.paths,
                    .untimed = one.untimed};
  for (ResourceUse& use : result.uses) {
    use.busy = between(use.busy, busy(other, use.resource));
  }
  for (std::size_t i = 0; i < std::min(one.paths.size(), other.paths.size()); ++i) {
    auto const bytes = [&](Bytes a, Bytes b) {
      return static_cast<Bytes>((1.0 - often) * static_cast<double>(a) +
                                often * static_cast<double>(b));
    };
    result.paths[i] = {bytes(one.paths[i].read, other.paths[i].read),
                       bytes(one.paths[i].written, other.paths[i].written)};
  }
  sort(result.uses);
  return result;
}

Prediction simulate(Machine const& machine, Workload const& workload, Schedule const& schedule,
                    Detail const& detail) {
  auto step = coarse(machine, workload, schedule, detail);
  step.work.row = std::min(step.work.row, longest_row);
  std::int64_t const row = step.work.row;
  bool const vertical = workload.vertical.has_value();
  // Whole rows, so that both steps have their share of exchanges.
  std::int64_t const difference =
      round_up(vertical ? vertical_difference : horizontal_difference, row);
  std::int64_t const rounds = workload.rounds;
  std::int64_t const wanted = vertical ? detail.rounds_in_layers : detail.rounds;
  std::int64_t const most = std::max(round_up(std::min(wanted, rounds), row), difference + row);
  if (rounds <= most) {
    return simulate_rounds(step, rounds);
  }
  return extrapolated(simulate_rounds(step, most - difference), simulate_rounds(step, most),
                      static_cast<double>(rounds - most) / static_cast<double>(difference));
}

std::vector<SimulatedEvent> simulate_events(Machine const& machine, Workload const& workload,
                                            Schedule const& schedule, std::size_t most) {
  std::vector<SimulatedEvent> events;
  SimulatedSteps{machine, workload, schedule, &events}.run_until(most);
  return events;
}

}  // namespace offstage::plan
