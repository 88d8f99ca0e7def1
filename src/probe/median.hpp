#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "probe/measure.hpp"

namespace offstage::probe {

/// Median; of an even number of values the mean of the two in the middle. `values` is not empty.
[[nodiscard]] inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  std::size_t const half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

/// Units per second of `timed(passes)`, which does work worth so many units that many times and
/// says how long it took: the median of the rounds, each long enough. A first pass warms up: on a
/// GPU it loads code, which takes longer than the work.
template <class Timed>
[[nodiscard]] double median_rate(Effort const& effort, double units, Timed&& timed) {
  constexpr Seconds shortest{1e-7};  // less cannot be told from nothing
  constexpr double most_passes = 10'000.0;
  static_cast<void>(timed(1));
  Seconds const once = std::max(shortest, Seconds{timed(1)});
  auto const passes =
      static_cast<int>(std::clamp(std::ceil(effort.least / once), 1.0, most_passes));
  std::vector<double> rates;
  do {
    rates.push_back(units * passes / std::max(shortest, Seconds{timed(passes)}).count());
  } while (static_cast<int>(rates.size()) < effort.rounds);
  return median(std::move(rates));
}

}  // namespace offstage::probe
