#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "train/forecast/forecast.hpp"

namespace offstage::train {

/// A use in words: "the device 87 %".
[[nodiscard]] std::string use_of(plan::ResourceUse const& use, Forecast const& forecast);
/// The need of device memory and its limit, in words, if the limit is too small; else empty.
[[nodiscard]] std::string shortage_of(Forecast const& forecast, Bytes limit);
/// Returns whether all rates are known on which a step's time depends.
[[nodiscard]] bool has_times(Forecast const& forecast);

/// The keys of rates that the step needs and nobody gave, without which its time is as if what they
/// move took none: "platform.rank-link".
[[nodiscard]] std::vector<std::string> untimed_keys(Forecast const& forecast);

/// The forecast of a configuration; none if it does not fit.
[[nodiscard]] std::optional<Forecast> attempt(config::RunConfig const& config,
                                              ForecastScope const& scope);

/// A change of the machine or the configuration that helps.
struct Help {
  std::string words;  ///< "one more path like /nvme"
  Forecast forecast;  ///< forecast with the change
};

/// The changes that make a step clearly shorter than `before`, the best one first; without `before`
/// the changes with which the run fits. Each is a forecast of its own. `may_choose`: no plan has
/// chosen the configuration yet, so that one may help.
[[nodiscard]] std::vector<Help> what_helps(config::RunConfig const& config,
                                           ForecastScope const& scope,
                                           std::optional<Seconds> before, bool may_choose);

/// The sentence that none of these changes helps much: "nothing of twice the paths, ...".
[[nodiscard]] std::string nothing_of_these(bool may_choose);

/// Sentences, at most four, that name the bound of a run's steps and the changes that would save
/// time, with how much. None if rates are missing. `config` has the rates at the run's end, which
/// the sentences name so: ForecastReport's prediction may be by those of the first steps.
/// `reached` is the mean step; 0: no step was counted, and there is no advice. If the simulation is
/// far from it, a sentence says that instead.
[[nodiscard]] std::vector<std::string> advise(config::RunConfig const& config,
                                              ForecastScope const& scope, Seconds reached,
                                              bool may_choose);

}  // namespace offstage::train
