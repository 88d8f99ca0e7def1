#include "plan/simulation.hpp"

#include <algorithm>
#include <functional>

#include "plan/simulated_step.hpp"

namespace offstage::plan {

Prediction mean(Prediction const& one, Prediction const& other, double often) {
  auto const between = [&](Seconds a, Seconds b) { return (1.0 - often) * a + often * b; };
  Prediction result{.step = between(one.step, other.step),
                    .forward = between(one.forward, other.forward),
                    .backward = between(one.backward, other.backward),
                    .update = between(one.update, other.update),
                    .uses = one.uses,
                    .paths = one.paths};
  for (ResourceUse& use : result.uses) {
    auto const found = std::ranges::find(other.uses, use.name, &ResourceUse::name);
    use.busy = between(use.busy, found == other.uses.end() ? Seconds{} : found->busy);
  }
  for (std::size_t i = 0; i < std::min(one.paths.size(), other.paths.size()); ++i) {
    auto const bytes = [&](Bytes a, Bytes b) {
      return static_cast<Bytes>((1.0 - often) * static_cast<double>(a) +
                                often * static_cast<double>(b));
    };
    result.paths[i] = {bytes(one.paths[i].read, other.paths[i].read),
                       bytes(one.paths[i].written, other.paths[i].written)};
  }
  std::ranges::stable_sort(result.uses, std::ranges::greater{}, &ResourceUse::busy);
  return result;
}

Prediction simulate(Machine const& machine, Workload const& workload, Schedule const& schedule,
                    std::vector<SimulatedEvent>* events) {
  return SimulatedSteps{machine, workload, schedule, events}.run();
}

}  // namespace offstage::plan
