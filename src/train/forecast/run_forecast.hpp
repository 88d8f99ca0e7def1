#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "plan/machine.hpp"
#include "plan/share.hpp"
#include "plan/simulation.hpp"
#include "plan/split.hpp"
#include "platform/trace/trace.hpp"

namespace offstage::config {
struct RunConfig;
}

namespace offstage::train {

struct StepFacts;

/// Rates that a run has measured in its steps so far; 0: not known.
struct ReachedRates {
  Seconds forward{}, backward{};        ///< of the last step
  plan::UpdateRates update{};           ///< without paths
  std::vector<plan::PathRate> paths{};  ///< of a node, in the order of tiers.path
  std::int64_t steps{}, clipped{};      ///< so far, and those whose norm was above optimizer.clip
};

/// The prediction of a run's steps.
struct RunForecast {
  plan::Prediction step{};              ///< of this rank
  std::vector<plan::PathRate> paths{};  ///< of a node, by which it is made; as step.paths
  plan::Machine machine{};              ///< of this rank, by which it is made
  bool given = true;  ///< by rates that were given; else some are as its first steps had them
  std::vector<std::string> unknown{};  ///< resources whose rates nobody knows: they take no time
};

/// The steps of a run by rates that were given and, where `reached` is not null, for the others by
/// those that it has reached; updates under backward are done again as often as norms were above
/// the limit so far. Products that were not measured count as all that forward, or
/// backward, waited for, whichever makes them quicker.
/// Returns nothing where a rate is missing and `reached` is null, and where what goes to storage has
/// paths of which nothing is known.
/// T is numerics.dtype.
/// Time: that of some simulations (plan::simulate). `events`: as StepSimulation's.
/// Errors: those of plan::simulate.
template <class T>
[[nodiscard]] std::optional<RunForecast> foresee_run(
    config::RunConfig const& config, StepFacts const& facts, ReachedRates const* reached,
    std::vector<plan::SimulatedEvent>* events = nullptr);

/// The events as spans of a trace, whose clock reads 0 when the first step begins.
void draw(std::vector<plan::SimulatedEvent> const& events, trace::Trace& trace);

}  // namespace offstage::train
