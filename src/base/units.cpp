#include "base/units.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace offstage {
namespace {

using Unit = std::pair<std::string_view, double>;

/// Splits "1.5GiB" into 1.5 and "GiB". False unless a non-negative number stands in front.
bool split_number(std::string_view text, double& number, std::string_view& unit) {
  auto const* const end = text.data() + text.size();
  auto const [rest, code] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (code != std::errc{} || number < 0.0 || !std::isfinite(number)) {
    return false;
  }
  unit = std::string_view{rest, static_cast<std::size_t>(end - rest)};
  while (!unit.empty() && unit.front() == ' ') {
    unit.remove_prefix(1);
  }
  return true;
}

template <std::size_t N>
double scaled(std::string_view text, std::array<Unit, N> const& units, std::string const& advice) {
  double number{};
  std::string_view unit;
  if (split_number(text, number, unit)) {
    for (auto const& [name, factor] : units) {
      if (unit == name) {
        return number * factor;
      }
    }
  }
  throw UsageError{fmt::format("'{}' is not {}", text, advice)};
}

/// Numbers between colons; empty if something else stands there.
std::vector<double> split_fields(std::string_view text) {
  std::vector<double> fields;
  for (bool more = true; more;) {
    auto const colon = text.find(':');
    more = colon != std::string_view::npos;
    double number{};
    std::string_view tail;
    if (!split_number(text.substr(0, colon), number, tail) || !tail.empty()) {
      return {};
    }
    fields.push_back(number);
    text.remove_prefix(more ? colon + 1 : text.size());
  }
  return fields;
}

/// MM:SS and HH:MM:SS, and as Slurm has it D-HH, D-HH:MM and D-HH:MM:SS. nullopt: none of these.
std::optional<Seconds> parse_clock(std::string_view text) {
  double total{};
  auto const dash = text.find('-');
  bool const has_days = dash != std::string_view::npos;
  if (has_days) {
    auto const days = split_fields(text.substr(0, dash));
    if (days.size() != 1) {
      return std::nullopt;
    }
    total = 86400.0 * days.front();
    text.remove_prefix(dash + 1);
  }
  auto const fields = split_fields(text);
  std::size_t const least = has_days ? 1 : 2;
  if (fields.size() < least || fields.size() > 3) {
    return std::nullopt;
  }
  double unit = has_days || fields.size() == 3 ? 3600.0 : 60.0;
  for (double const field : fields) {
    total += unit * field;
    unit /= 60.0;
  }
  return Seconds{total};
}

std::int64_t whole(double value, std::string_view text) {
  if (value >= static_cast<double>(std::numeric_limits<std::int64_t>::max())) {
    throw UsageError{fmt::format("'{}' is too large", text)};
  }
  auto const rounded = std::llround(value);
  if (rounded == 0 && value > 0.0) {
    throw UsageError{fmt::format("'{}' is less than 1", text)};
  }
  return rounded;
}

}  // namespace

Bytes parse_bytes(std::string_view text) {
  static constexpr std::array<Unit, 18> units{{{"", 1.0},
                                               {"B", 1.0},
                                               {"kB", 1e3},
                                               {"KB", 1e3},
                                               {"MB", 1e6},
                                               {"GB", 1e9},
                                               {"TB", 1e12},
                                               {"KiB", 0x1p10},
                                               {"MiB", 0x1p20},
                                               {"GiB", 0x1p30},
                                               {"TiB", 0x1p40},
                                               {"K", 0x1p10},
                                               {"M", 0x1p20},
                                               {"G", 0x1p30},
                                               {"T", 0x1p40},
                                               {"k", 0x1p10},
                                               {"m", 0x1p20},
                                               {"g", 0x1p30}}};
  return whole(scaled(text, units, "a size; write for example 512MiB, 1.5GB or 4096"), text);
}

std::int64_t parse_count(std::string_view text) {
  static constexpr std::array<Unit, 7> units{
      {{"", 1.0}, {"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"G", 1e9}, {"T", 1e12}}};
  return whole(scaled(text, units, "a count; write for example 100M, 1.5B or 4096"), text);
}

Seconds parse_duration(std::string_view text) {
  static constexpr char const* advice =
      "a duration; write for example 90s, 30min, 2h, 1d, HH:MM:SS or D-HH:MM:SS";
  if (text.find_first_of(":-") != std::string_view::npos) {
    if (auto const time = parse_clock(text)) {
      return *time;
    }
    throw UsageError{fmt::format("'{}' is not {}", text, advice)};
  }
  static constexpr std::array<Unit, 9> units{{{"", 1.0},
                                              {"s", 1.0},
                                              {"us", 1e-6},
                                              {"ms", 1e-3},
                                              {"min", 60.0},
                                              {"m", 60.0},
                                              {"h", 3600.0},
                                              {"d", 86400.0},
                                              {"sec", 1.0}}};
  return Seconds{scaled(text, units, advice)};
}

std::string format_bytes(Bytes bytes) {
  static constexpr std::array<char const*, 6> units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::abs(value) >= 1023.5 && unit + 1 < units.size()) {
    value /= 1024.0;
    ++unit;
  }
  if (unit == 0) {
    return fmt::format("{} B", bytes);
  }
  int const decimals = std::abs(value) < 9.995 ? 2 : (std::abs(value) < 99.95 ? 1 : 0);
  return fmt::format("{:.{}f} {}", value, decimals, units[unit]);
}

std::string format_duration(Seconds duration) {
  double const seconds = duration.count();
  if (seconds < 60.0) {
    return fmt::format("{:.1f} s", seconds);
  }
  auto const whole_seconds = static_cast<std::int64_t>(std::llround(seconds));
  if (whole_seconds < 3600) {
    return fmt::format("{} min {:02} s", whole_seconds / 60, whole_seconds % 60);
  }
  return fmt::format("{} h {:02} min", whole_seconds / 3600, whole_seconds % 3600 / 60);
}

}  // namespace offstage
