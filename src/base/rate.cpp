#include "base/rate.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>

namespace offstage {

std::string format_rate(double bytes_per_second) {
  static constexpr std::array<char const*, 4> units{"kB/s", "MB/s", "GB/s", "TB/s"};
  double value = bytes_per_second / 1e3;
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) {
    value /= 1e3;
    ++unit;
  }
  int const decimals = value < 9.995 ? 2 : (value < 99.95 ? 1 : 0);
  return fmt::format("{:.{}f} {}", value, decimals, units[unit]);
}

}  // namespace offstage
