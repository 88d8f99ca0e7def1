#pragma once

#include <algorithm>
#include <vector>

namespace offstage::probe {

/// Of an even number of values the mean of the two in the middle; `values` is not empty.
[[nodiscard]] inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  std::size_t const half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

/// The median of so many calls, at least one, after one that warms up.
template <class Measure>
[[nodiscard]] double median_of(int rounds, Measure&& measure) {
  static_cast<void>(measure());
  std::vector<double> values;
  do {
    values.push_back(measure());
  } while (static_cast<int>(values.size()) < rounds);
  return median(std::move(values));
}

}  // namespace offstage::probe
