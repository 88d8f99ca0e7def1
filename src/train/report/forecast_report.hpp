#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "train/forecast/run_forecast.hpp"
#include "train/offload/storage_step.hpp"

namespace offstage::train {

/// Times and traffic of a step.
struct StepTimes {
  Seconds forward{}, backward{}, update{}, step{};
  StorageStep storage{};  ///< all ranks
};

/// Compares the steps of a run with the forecast. It is made of pure sums.
class ForecastReport {
 public:
  /// Sets the number of ranks whose storage traffic the steps have.
  void set_ranks(std::int64_t ranks) { ranks_ = ranks; }
  [[nodiscard]] std::int64_t ranks() const { return ranks_; }
  /// Sets the forecast of the steps that are added from now on.
  void expect(RunForecast forecast) { forecast_ = std::move(forecast); }
  [[nodiscard]] std::optional<RunForecast> const& expected() const { return forecast_; }
  /// Forecast of the next step's seconds; 0: there is none.
  [[nodiscard]] Seconds step() const { return forecast_ ? forecast_->step.step : Seconds{}; }
  void add(StepTimes const& times);
  /// Mean time of the steps in lines(); 0: there are none.
  [[nodiscard]] Seconds reached() const {
    return counted_ > 0 ? sum_.step / static_cast<double>(counted_) : Seconds{};
  }
  /// A few lines of the end report: phases and paths, as means over the steps with a forecast,
  /// without a run's first step if there are others. None if there are no such steps.
  [[nodiscard]] std::vector<std::string> lines() const;

 private:
  void add_paths(std::vector<std::string>& lines) const;

  std::optional<RunForecast> forecast_;
  std::int64_t ranks_ = 1;
  std::int64_t steps_{};    ///< steps of the run
  std::int64_t counted_{};  ///< steps that the next member sums
  StepTimes sum_;
};

}  // namespace offstage::train
