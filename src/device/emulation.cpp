#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/nearest.hpp"
#include "device/device.hpp"

namespace offstage::device {
namespace {

/// What a name's rate counts, with what a user is told of it.
struct Unit {
  char const* wanted;
  char const* example;
  double least, most;
  char const* limits;
  bool bytes;
};
constexpr Unit bytes_moved{"bytes per second", "3GB/s", 1e3, 1e15, "1 kB/s and 1000 TB/s", true};
constexpr Unit parameters_updated{
    "parameters per second", "900M", 1e3, 1e15, "1k and 1000000B (parameters per second)", false};
constexpr Unit operations{
    "floating-point operations per second", "400T", 1e6, 1e18, "1M and 1000000T (FLOP/s)", false};

struct Rate {
  char const* name;
  Unit const& unit;
  double Emulation::*value;
};
constexpr std::array rates{Rate{"h2d", bytes_moved, &Emulation::host_to_device},
                           Rate{"d2h", bytes_moved, &Emulation::device_to_host},
                           Rate{"compute", operations, &Emulation::compute},
                           Rate{"update", parameters_updated, &Emulation::device_update},
                           Rate{"host-update", parameters_updated, &Emulation::host_update},
                           Rate{"host-sum", bytes_moved, &Emulation::host_sum}};

/// One name=rate of the text.
struct Part {
  Rate const& rate;
  std::string value;

  [[noreturn]] void refuse(std::string const& right) const {
    throw UsageError{fmt::format("{}={} is not right: {}", rate.name, value, right)};
  }
};

Rate const& rate_named(std::string const& name) {
  auto const found = std::ranges::find(rates, name, &Rate::name);
  if (found == rates.end()) {
    std::vector<std::string> names;
    std::ranges::transform(rates, std::back_inserter(names), &Rate::name);
    throw UsageError{fmt::format(
        "unknown rate '{}'; the nearest is {} (h2d and d2h are the link's, compute is that of the "
        "device's products, "
        "update and host-update are AdamW's, host-sum is that of gradients added on the cores)",
        name, nearest(name, names))};
  }
  return *found;
}

/// Errors: UsageError unless it is a known name with a value.
Part split(std::string_view text) {
  if (text.empty()) {
    throw UsageError{
        "a rate is empty; write one name=rate between two commas, for example "
        "h2d=3GB/s,d2h=3GB/s"};
  }
  auto const equals = static_cast<std::size_t>(std::ranges::find(text, '=') - text.begin());
  std::string const name{text.substr(0, equals)};
  Rate const& rate = rate_named(name);
  if (equals == text.size()) {
    throw UsageError{fmt::format("{} has no value; write {}=...", rate.name, rate.name)};
  }
  return {rate, std::string{text.substr(equals + 1)}};
}

double value_of(Part const& part) {
  Unit const& unit = part.rate.unit;
  std::string_view text = part.value;
  if (text.ends_with("/s")) {
    text.remove_suffix(2);
  }
  double value{};
  try {
    value = static_cast<double>(unit.bytes ? parse_bytes(text) : parse_count(text));
  } catch (UsageError const&) {
    part.refuse(fmt::format("{} are wanted; write for example {}={}", unit.wanted, part.rate.name,
                            unit.example));
  }
  if (value < unit.least || value > unit.most) {
    part.refuse(fmt::format("a rate lies between {}; leave {} out where it is not limited",
                            unit.limits, part.rate.name));
  }
  return value;
}

}  // namespace

Emulation parse_emulation(std::string const& text) {
  Emulation emulation;
  std::string_view rest = text;
  bool more = !text.empty();
  while (more) {
    auto const comma = std::min(rest.find(','), rest.size());
    Part const part = split(rest.substr(0, comma));
    double& value = emulation.*part.rate.value;
    if (value > 0.0) {
      throw UsageError{fmt::format("{} comes twice; write it once", part.rate.name)};
    }
    value = value_of(part);
    more = comma < rest.size();
    rest.remove_prefix(more ? comma + 1 : comma);
  }
  return emulation;
}

}  // namespace offstage::device
