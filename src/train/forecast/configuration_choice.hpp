#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "config/run_config.hpp"
#include "plan/simulation.hpp"
#include "state/shard.hpp"
#include "train/forecast/chosen.hpp"
#include "train/settle/activation_choice.hpp"

namespace offstage::train {

/// A configuration beside the chosen one, in words and seconds.
struct Alternative {
  std::string what;
  Seconds step{};
  bool at_least = false;  ///< a bound: it was not simulated
};

struct Choice {
  Chosen chosen;
  plan::Prediction step;
  std::vector<Alternative> others;  ///< the best with another value of a key, for each such key
  int tried = 0, fitting = 0, simulated = 0;
};

/// Ten lines at most for the header: what was chosen and why. `tokens`: of a step.
[[nodiscard]] std::vector<std::string> describe(Choice const& choice,
                                                config::RunConfig const& config,
                                                std::int64_t tokens);

/// Keys without whose rates no configuration can be chosen: "platform.products".
[[nodiscard]] std::vector<std::string> rates_missing(config::RunConfig const& config,
                                                     bool host_visible);

/// The configuration of the quickest step among all values of the keys that are left to the plan:
/// parameters.home=auto, parameters.sharding=auto, train.schedule=auto, train.activations=auto, update.overlap=auto,
/// update.device-share=auto, update.device-resident=auto, tiers.cache=auto. Pure; the same numbers
/// give the same choice.
///
/// Search:  values of home, sharding, schedule, activations, overlap and residents that fit by the memory
///          plans of a run; those whose busiest resource alone takes longer than the best so far
///          are left out (plan::least_time), the others simulated, coarsely at first. The share and
///          the cache are varied around the best ones. Of equals the one that moves least.
/// Bounded: by a count of simulations, not by time.
/// Bits:    none of these keys changes any. train.micro-batch does: products have other shapes, and
///          each micro-batch's gradient is rounded before it is added. So it is never searched.
/// T is numerics.dtype. Errors: UsageError: nothing fits; names what the most frugal one lacks.
template <class T>
[[nodiscard]] Choice choose_configuration(config::RunConfig const& config,
                                          state::ShardMap const& map, ActivationRoom const& room);
/// The first of them that fits, without any rates: what moves least. Errors: likewise.
template <class T>
[[nodiscard]] Chosen first_that_fits(config::RunConfig const& config, state::ShardMap const& map,
                                     ActivationRoom const& room);

}  // namespace offstage::train
