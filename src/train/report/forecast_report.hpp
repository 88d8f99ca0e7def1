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

/// Holds the steps of a run against what was expected of them: pure sums.
class ForecastReport {
 public:
  /// `ranks`: whose storage traffic the steps have.
  void set_ranks(std::int64_t ranks) { ranks_ = ranks; }
  [[nodiscard]] std::int64_t ranks() const { return ranks_; }
  /// Steps that are added from now on are expected to be so.
  void expect(RunForecast forecast) { forecast_ = std::move(forecast); }
  [[nodiscard]] std::optional<RunForecast> const& expected() const { return forecast_; }
  /// Seconds that the next one is expected to take; 0: nothing is expected.
  [[nodiscard]] Seconds step() const { return forecast_ ? forecast_->step.step : Seconds{}; }
  void add(StepTimes const& times);
  /// Mean of the steps in lines(); 0: there are none.
  [[nodiscard]] Seconds reached() const {
    return counted_ > 0 ? sum_.step / static_cast<double>(counted_) : Seconds{};
  }
  /// A few lines of the end report: phases and paths, the means of the steps of which something was
  /// expected, without a run's first one if there are others. None if there are none.
  [[nodiscard]] std::vector<std::string> lines() const;

 private:
  void add_paths(std::vector<std::string>& lines) const;

  std::optional<RunForecast> forecast_;
  std::int64_t ranks_ = 1;
  std::int64_t steps_{};    ///< of the run
  std::int64_t counted_{};  ///< of those, in what follows
  StepTimes sum_;           ///< without storage
  std::vector<PathStep> paths_;
};

}  // namespace offstage::train
