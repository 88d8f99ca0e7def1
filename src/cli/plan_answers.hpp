#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/options.hpp"
#include "train/forecast/forecast.hpp"

namespace offstage::cli {

/// Prints a row of `offstage plan`'s output.
void print_line(std::string const& name, std::string const& text);
/// A number in three significant figures: "6.74 B".
[[nodiscard]] std::string in_short(double value);
/// The forecast of a policy's row. `problem` says why it has no times, or does not fit; else empty.
struct RowForecast {
  train::Forecast forecast{};
  std::string problem{};
};
/// The forecasts of all rows, computed on several threads. `own` is that of the run itself, if it
/// has one.
[[nodiscard]] std::vector<RowForecast> forecast_rows(std::vector<PolicyRow> const& rows,
                                                     train::ForecastScope const& scope,
                                                     train::Forecast const* own);

/// Prints in plain words whether the run fits, how long a step is, what bounds it, and which change
/// of the machine would help how much, each by a forecast of its own. There is no `forecast` if
/// host memory is too small, which `problem` then says.
void print_answers(std::optional<train::Forecast> const& forecast, std::string const& problem,
                   PlanOptions const& options, train::ForecastScope const& scope);

/// Prints the largest size of the kind that --max names with which the run fits, and its step.
/// Errors: UsageError: not even the smallest fits.
void print_largest(PlanOptions const& options, train::ForecastScope const& scope);

}  // namespace offstage::cli
