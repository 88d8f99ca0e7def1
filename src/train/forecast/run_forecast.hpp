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
  Seconds forward{}, backward{};        ///< seconds of the last step
  plan::UpdateRates update{};           ///< rates of updates, without paths
  std::vector<plan::PathRate> paths{};  ///< rates of a node, in the order of tiers.path
  std::int64_t steps{}, clipped{};  ///< steps so far, and those whose norm was above optimizer.clip
};

/// The prediction of a run's steps.
struct RunForecast {
  plan::Prediction step{};  ///< this rank's steps
  /// Rates of a node in the prediction, in the order of step.paths.
  std::vector<plan::PathRate> paths{};
  plan::Machine machine{};  ///< this rank's machine in the prediction
  bool given = true;        ///< all rates were given; else some are those of the first steps
  std::vector<std::string> unknown{};  ///< resources with unknown rates, which take no time
};

/// Predicts the steps of a run by the given rates and, if `reached` is not null, by reached ones in
/// place of missing ones. Updates under backward are made again as often as norms were above the
/// limit so far. If products were not measured, forward or backward is assumed to have waited for
/// them alone, whichever makes them quicker. Returns nothing if a rate is missing and `reached` is
/// null, or if extents go to storage whose paths have no known rate. The call takes the time of
/// some simulations (plan::simulate). `events` is as in StepSimulation.
/// Errors: those of plan::simulate.
[[nodiscard]] std::optional<RunForecast> foresee_run(
    config::RunConfig const& config, StepFacts const& facts, ReachedRates const* reached,
    std::vector<plan::SimulatedEvent>* events = nullptr);

/// Writes the events as spans to a trace, whose clock reads 0 when the first step begins.
void draw(std::vector<plan::SimulatedEvent> const& events, trace::Trace& trace);

}  // namespace offstage::train
