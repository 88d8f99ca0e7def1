#include "report/scale.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace offstage::report {
namespace {

/// 1, 2 or 5 times a power of ten, no less than `least`.
double round_step(double least) {
  double const power = std::pow(10.0, std::floor(std::log10(least)));
  for (double const factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1.0 - 1e-9)) {
      return factor * power;
    }
  }
  return 10.0 * power;
}

/// Few powers of ten lie in a logarithmic range: 2 and 5 times of them are ticks, too.
bool is_fine(Range range) {
  return range.high < 100.0 * range.low;
}

/// The next power of ten, or where it is `fine` 1, 2 or 5 times one.
double round_above(double value, bool fine) {
  double const round = round_step(value);
  return fine ? round : std::pow(10.0, std::ceil(std::log10(round) - 1e-9));
}
double round_below(double value, bool fine) {
  return 1.0 / round_above(1.0 / value, fine);
}

double step_of(Range range, int wanted) {
  return round_step((range.high - range.low) / wanted);
}

/// With as many digits as neighbours need.
std::string label_of(double value, double step) {
  double const size = std::max(std::abs(value), step);
  if (size >= 1e4 || step < 1e-4) {
    return in_short(value);
  }
  int const digits = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  return fmt::format("{:.{}f}", value, digits);
}

std::vector<Tick> logarithmic_ticks(Range range, int wanted) {
  std::vector<Tick> all;
  double const decades = std::log10(range.high / range.low);
  bool const fine = is_fine(range);
  int const stride = std::max(1, static_cast<int>(std::ceil(decades / wanted)));
  for (int power = static_cast<int>(std::floor(std::log10(range.low) - 1e-9));
       power <= static_cast<int>(std::ceil(std::log10(range.high) + 1e-9)); power += stride) {
    for (double const factor : {1.0, 2.0, 5.0}) {
      double const value = factor * std::pow(10.0, power);
      bool const inside = value >= range.low * (1.0 - 1e-9) && value <= range.high * (1.0 + 1e-9);
      if (inside && (fine || factor == 1.0)) {
        all.push_back({value, in_short(value)});
      }
    }
  }
  return all;
}

}  // namespace

void Range::take(double value) {
  if (!std::isfinite(value)) {
    return;
  }
  bool const first = empty();
  low = first ? value : std::min(low, value);
  high = first ? value : std::max(high, value);
}

std::vector<Tick> ticks(Range range, Spacing spacing, int wanted) {
  if (spacing == Spacing::logarithmic) {
    return logarithmic_ticks(range, wanted);
  }
  std::vector<Tick> all;
  double const step = step_of(range, wanted);
  double const first = std::ceil(range.low / step - 1e-9);
  for (double count = first; count * step <= range.high + 1e-9 * step; ++count) {
    double const value = count == 0.0 ? 0.0 : count * step;
    all.push_back({value, label_of(value, step)});
  }
  return all;
}

Range widened(Range range, Spacing spacing, int wanted) {
  if (range.empty()) {
    range = {1.0, 1.0};
  }
  if (spacing == Spacing::logarithmic) {
    range.low = std::max(range.low, 1e-12);
    range.high = std::max(range.high, 1.01 * range.low);
    bool const fine = is_fine(range);
    return {round_below(range.low, fine), round_above(range.high, fine)};
  }
  if (range.high - range.low <= 1e-9 * std::abs(range.high)) {
    double const around = range.high == 0.0 ? 1.0 : 0.1 * std::abs(range.high);
    range = {range.low - around, range.high + around};
  }
  double const step = step_of(range, wanted);
  return {std::floor(range.low / step + 1e-9) * step, std::ceil(range.high / step - 1e-9) * step};
}

std::string in_short(double value) {
  if (!std::isfinite(value)) {
    return "-";
  }
  struct Unit {
    double size;
    char const* name;
  };
  static constexpr std::array<Unit, 4> units{{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}};
  for (Unit const& unit : units) {
    if (std::abs(value) >= 0.9995 * unit.size && std::abs(value) >= 1e4) {
      return fmt::format("{:.3g}{}", value / unit.size, unit.name);
    }
  }
  return std::abs(value) >= 999.5 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

TimeUnit time_unit(double longest) {
  constexpr double minute = 60.0, hour = 3600.0, day = 86400.0;
  if (longest > 3.0 * day) {
    return {"d", day};
  }
  if (longest > 3.0 * hour) {
    return {"h", hour};
  }
  return longest > 5.0 * minute ? TimeUnit{"min", minute} : TimeUnit{"s", 1.0};
}

}  // namespace offstage::report
