#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/nearest.hpp"
#include "device/device.hpp"

namespace offstage::device {
namespace {

constexpr double least_rate = 1e3;
constexpr double most_rate = 1e15;

std::vector<std::string> const& names() {
  static std::vector<std::string> const all{"h2d", "d2h", "update", "host-update"};
  return all;
}

struct Part {
  std::string name;
  std::string value;

  [[noreturn]] void refuse(std::string const& right) const {
    throw UsageError{fmt::format("{}={} is not right: {}", name, value, right)};
  }
};

/// Errors: UsageError unless it is a known name with a value.
Part split(std::string_view text) {
  if (text.empty()) {
    throw UsageError{
        "a rate is empty; write one name=rate between two commas, for example "
        "h2d=3GB/s,d2h=3GB/s"};
  }
  auto const equals = static_cast<std::size_t>(std::ranges::find(text, '=') - text.begin());
  Part part{std::string{text.substr(0, equals)}, {}};
  if (std::ranges::find(names(), part.name) == names().end()) {
    throw UsageError{fmt::format(
        "unknown rate '{}'; the nearest is {} (h2d and d2h are the link's, update and host-update "
        "AdamW's)",
        part.name, nearest(part.name, names()))};
  }
  if (equals == text.size()) {
    throw UsageError{fmt::format("{} has no value; write {}=...", part.name, part.name)};
  }
  part.value = text.substr(equals + 1);
  return part;
}

double rate_of(Part const& part) {
  bool const link = part.name == "h2d" || part.name == "d2h";
  std::string_view text = part.value;
  if (text.ends_with("/s")) {
    text.remove_suffix(2);
  }
  double rate{};
  try {
    rate = static_cast<double>(link ? parse_bytes(text) : parse_count(text));
  } catch (UsageError const&) {
    part.refuse(
        link ? fmt::format("bytes per second are wanted; write for example {}=3GB/s", part.name)
             : fmt::format("parameters per second are wanted; write for example {}=900M",
                           part.name));
  }
  if (rate < least_rate || rate > most_rate) {
    part.refuse(fmt::format(
        "a rate lies between {}; leave {} out where it is not limited",
        link ? "1 kB/s and 1000 TB/s" : "1k and 1000000B (parameters per second)", part.name));
  }
  return rate;
}

double& rate_named(Emulation& emulation, std::string_view name) {
  return name == "h2d"      ? emulation.host_to_device
         : name == "d2h"    ? emulation.device_to_host
         : name == "update" ? emulation.device_update
                            : emulation.host_update;
}

}  // namespace

Emulation parse_emulation(std::string const& text) {
  Emulation emulation;
  std::string_view rest = text;
  bool more = !text.empty();
  while (more) {
    auto const comma = std::min(rest.find(','), rest.size());
    Part const part = split(rest.substr(0, comma));
    double& rate = rate_named(emulation, part.name);
    if (rate > 0.0) {
      throw UsageError{fmt::format("{} comes twice; write it once", part.name)};
    }
    rate = rate_of(part);
    more = comma < rest.size();
    rest.remove_prefix(more ? comma + 1 : comma);
  }
  return emulation;
}

}  // namespace offstage::device
