#pragma once

#include <cmath>

namespace offstage {

/// The running mean of a curve that is noisy: recent values count most, those of ten before still a
/// third. It begins at the first value. Values that are not finite are left out.
class Smoothed {
 public:
  static constexpr double kept = 0.9;  ///< share of the mean that stays, per value

  /// Returns the mean with `value` in it; NaN before there is any.
  double add(double value) {
    if (std::isfinite(value)) {
      sum_ = kept * sum_ + (1.0 - kept) * value;
      weight_ = kept * weight_ + (1.0 - kept);
    }
    return mean();
  }
  [[nodiscard]] double mean() const { return sum_ / weight_; }

 private:
  double sum_ = 0.0, weight_ = 0.0;
};

}  // namespace offstage
