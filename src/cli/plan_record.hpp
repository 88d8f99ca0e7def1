#pragma once

#include <optional>
#include <string>

#include "cli/options.hpp"
#include "train/forecast/forecast.hpp"

namespace offstage::cli {

/// The answers of `offstage plan --json`, one line. There is no `forecast` if host memory is too
/// small, which `problem` then says. Bytes and seconds are plain numbers; what is not known is
/// null.
[[nodiscard]] std::string plan_record(std::optional<train::Forecast> const& forecast,
                                      std::string const& problem, PlanOptions const& options,
                                      train::ForecastScope const& scope);

}  // namespace offstage::cli
