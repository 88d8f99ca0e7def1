#pragma once

#include <string>

namespace offstage {

/// "6.90 GB/s", "470 kB/s": three significant figures, in powers of ten.
[[nodiscard]] std::string format_rate(double bytes_per_second);
/// The first of two rates, or the other one where that is not known (0).
[[nodiscard]] constexpr double first_known(double one, double other) {
  return one > 0.0 ? one : other;
}

}  // namespace offstage
