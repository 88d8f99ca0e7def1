#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "train/forecast/forecast.hpp"

namespace offstage::train {

/// "path 1" of a prediction is a directory.
[[nodiscard]] std::string name_of(std::string const& resource, Forecast const& forecast);
/// "the device 87 %".
[[nodiscard]] std::string use_of(plan::ResourceUse const& use, Forecast const& forecast);
/// The need of device memory beside its limit, where the limit is too small; else empty.
[[nodiscard]] std::string shortage_of(Forecast const& forecast, Bytes limit);
/// Whether all rates are known that a step's time needs.
[[nodiscard]] bool has_times(Forecast const& forecast);

/// The forecast of a configuration; none where it does not fit.
[[nodiscard]] std::optional<Forecast> attempt(config::RunConfig const& config,
                                              ForecastScope const& scope);

/// Something of the machine or the configuration that could be otherwise.
struct Help {
  std::string words;  ///< "one more path like /nvme"
  Forecast forecast;  ///< with it
};

/// With `before`, what makes a step clearly shorter than that, most of it first; without, what makes
/// it fit. Each is a forecast of its own.
[[nodiscard]] std::vector<Help> what_helps(config::RunConfig const& config,
                                           ForecastScope const& scope,
                                           std::optional<Seconds> before);

/// Sentences, at most four, that say what bounds the steps of a run and what would save how much of them.
/// None where rates are missing. `config` has the rates of the run. `reached`: the mean step; where the
/// simulation is far from it, a sentence says that instead.
[[nodiscard]] std::vector<std::string> advise(config::RunConfig const& config,
                                              ForecastScope const& scope, Seconds reached);

}  // namespace offstage::train
