#pragma once

#include <optional>
#include <string>

#include "cli/options.hpp"
#include "train/forecast/forecast.hpp"

namespace offstage::cli {

/// A row of `offstage plan`'s output.
void print_line(std::string const& name, std::string const& text);
/// "6.74 B", three significant figures.
[[nodiscard]] std::string in_short(double value);
/// In plain words: whether it fits, how long a step is and what bounds it, and what of the machine
/// would help how much, each by a forecast of its own. `forecast`: none where host memory does not
/// suffice, for which `problem` has the words.
void print_answers(std::optional<train::Forecast> const& forecast, std::string const& problem,
                   PlanOptions const& options, train::ForecastScope const& scope);

/// Largest of what --max asks for that fits, and a step of it.
/// Errors: UsageError: not even the least fits.
void print_largest(PlanOptions const& options, train::ForecastScope const& scope);

}  // namespace offstage::cli
