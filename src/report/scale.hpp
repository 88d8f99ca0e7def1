#pragma once

#include <string>
#include <vector>

namespace offstage::report {

/// From `low` to `high`; empty where low > high.
struct Range {
  double low = 1.0, high = 0.0;

  [[nodiscard]] bool empty() const { return low > high; }
  /// NaN and infinities are left out.
  void take(double value);
};

enum class Spacing { linear, logarithmic };

struct Tick {
  double value{};
  std::string label;
};

/// About `wanted` round values within the range: 1, 2 or 5 times a power of ten; of a logarithmic
/// one powers of ten, with 2 and 5 between them where these are few.
[[nodiscard]] std::vector<Tick> ticks(Range range, Spacing spacing, int wanted);

/// The least range with ticks at both ends.
[[nodiscard]] Range widened(Range range, Spacing spacing, int wanted);

/// "0.35", "12", "4.6k", "3.2M": some three figures.
[[nodiscard]] std::string in_short(double value);

/// A unit in which a length of time is read easily: "s", "min", "h", "d".
struct TimeUnit {
  char const* name;
  double seconds;
};
[[nodiscard]] TimeUnit time_unit(double longest);

}  // namespace offstage::report
