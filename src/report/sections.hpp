#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/run.hpp"

namespace offstage::report {

/// Parts of the page, each a <section> with its pictures and legend. Empty where no run has
/// recorded what it would show. Runs are told apart by the looks of run_look().

/// Loss, smoothed and of validations; norm and learning rate.
[[nodiscard]] std::string loss_section(std::vector<Run> const& runs);
/// Tokens and floating-point operations per second.
[[nodiscard]] std::string speed_section(std::vector<Run> const& runs);
/// Where a step's time goes, over the steps, and what was predicted.
[[nodiscard]] std::string phase_section(std::vector<Run> const& runs);
/// Phases as predicted and as achieved.
[[nodiscard]] std::string forecast_section(std::vector<Run> const& runs);
/// Bandwidth of each path beside what it can, and how busy it is.
[[nodiscard]] std::string storage_section(std::vector<Run> const& runs);
/// Memory beside its limits.
[[nodiscard]] std::string memory_section(std::vector<Run> const& runs);
/// Steps over time, with starts, saves and ends.
[[nodiscard]] std::string time_section(std::vector<Run> const& runs);

/// Classes of a run's colour, and line where colours come again.
[[nodiscard]] std::string run_look(std::size_t run);

/// The mean of the steps that `forecast` predicted, which are later ones of its start, without the
/// start's first step if there are others; `unknown` figures where there is none.
[[nodiscard]] Forecast achieved(Run const& run, Forecast const& forecast);

}  // namespace offstage::report
