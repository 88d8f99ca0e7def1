#include "tiers/path_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/nearest.hpp"
#include "base/text.hpp"

namespace offstage::tiers {
namespace {

constexpr double least_rate = 1e3;
constexpr double most_rate = 1e15;
constexpr Bytes most_request_bytes = 64 * MiB;
constexpr Bytes least_endurance = 1'000'000'000;
constexpr int most_depth = 1024;
constexpr int most_processes = 1024;
constexpr int most_threads = 1024;
constexpr double least_sharing = 0.01;
constexpr Seconds most_latency{10.0};

std::vector<std::string> const& attributes() {
  static std::vector<std::string> const names{
      "read",          "write",           "duplex",         "queue-depth",    "request-size",
      "processes",     "threads",         "persistent",     "endurance",      "emulate-read",
      "emulate-write", "emulate-latency", "emulate-duplex", "emulate-stream", "emulate-sharing"};
  return names;
}

bool known(std::string_view name) {
  return std::ranges::find(attributes(), name) != attributes().end();
}

/// `name=value` as it was written.
struct Attribute {
  std::string name;
  std::string value;
  bool has_value{};

  [[noreturn]] void refuse(std::string const& right) const {
    throw UsageError{fmt::format("{}={} is not right: {}", name, value, right)};
  }
};

Attribute split(std::string_view text) {
  auto const equals = text.find('=');
  if (equals == std::string_view::npos) {
    return {std::string{text}, {}, false};
  }
  return {std::string{text.substr(0, equals)}, std::string{text.substr(equals + 1)}, true};
}

double rate_of(Attribute const& attribute) {
  std::string_view text = attribute.value;
  if (text.ends_with("/s")) {
    text.remove_suffix(2);
  }
  double rate{};
  try {
    rate = static_cast<double>(parse_bytes(text));
  } catch (UsageError const&) {
    attribute.refuse(fmt::format("a rate is wanted; write for example {}=6.9GB/s", attribute.name));
  }
  if (rate < least_rate || rate > most_rate) {
    attribute.refuse(fmt::format(
        "a rate lies between 1 kB/s and 1000 TB/s; leave {} out where it is {}", attribute.name,
        attribute.name.starts_with("emulate") ? "not limited" : "to be measured"));
  }
  return rate;
}

int count_of(Attribute const& attribute, int most) {
  auto const count = number_in<int>(attribute.value);
  if (!count || *count < 1 || *count > most) {
    attribute.refuse(fmt::format("write a whole number from 1 to {}", most));
  }
  return *count;
}

Bytes size_of(Attribute const& attribute, char const* example) {
  try {
    return parse_bytes(attribute.value);
  } catch (UsageError const&) {
    attribute.refuse(
        fmt::format("a size is wanted; write for example {}={}", attribute.name, example));
  }
}

Bytes request_size_of(Attribute const& attribute) {
  Bytes const size = size_of(attribute, "8MiB");
  if (size < aio::direct_alignment || size > most_request_bytes ||
      size % aio::direct_alignment != 0) {
    attribute.refuse("write a multiple of 4096 up to 64MiB");
  }
  return size;
}

Bytes endurance_of(Attribute const& attribute) {
  Bytes const size = size_of(attribute, "600TB");
  if (size < least_endurance) {
    attribute.refuse("write the bytes that the drives are rated to take, 1GB or more");
  }
  return size;
}

Duplex duplex_of(Attribute const& attribute) {
  if (attribute.value != "half" && attribute.value != "full") {
    attribute.refuse("write half (reads and writes share the bandwidth) or full");
  }
  return attribute.value == "half" ? Duplex::half : Duplex::full;
}

Seconds latency_of(Attribute const& attribute) {
  Seconds latency{};
  try {
    latency = parse_duration(attribute.value);
  } catch (UsageError const&) {
    attribute.refuse("a time is wanted; write for example emulate-latency=0.5ms");
  }
  if (latency > most_latency) {
    attribute.refuse("write a time of up to 10s");
  }
  return latency;
}

double sharing_of(Attribute const& attribute) {
  auto const share = number_in<double>(attribute.value);
  if (!share || !(*share >= least_sharing && *share <= 1.0)) {
    attribute.refuse(fmt::format("write a number from {} to 1", least_sharing));
  }
  return *share;
}

/// One tiers.path while it is read; what was given and what was not still differ.
struct Draft {
  PathSettings path;
  Emulation emulation;
  std::optional<Duplex> duplex;
  std::optional<Duplex> emulated_duplex;
  bool emulated{};  ///< limited in a rate or by a latency

  void take(Attribute const& attribute);
  void take_emulation(Attribute const& attribute);
  [[nodiscard]] PathSettings finish();
};

void Draft::take(Attribute const& attribute) {
  std::string const& name = attribute.name;
  if (name == "read") {
    path.read_rate = rate_of(attribute);
  } else if (name == "write") {
    path.write_rate = rate_of(attribute);
  } else if (name == "duplex") {
    duplex = duplex_of(attribute);
  } else if (name == "queue-depth") {
    path.engine.queue_depth = count_of(attribute, most_depth);
  } else if (name == "request-size") {
    path.engine.request_bytes = request_size_of(attribute);
  } else if (name == "processes") {
    path.processes = count_of(attribute, most_processes);
  } else if (name == "threads") {
    path.threads = count_of(attribute, most_threads);
  } else if (name == "persistent") {
    path.persistent = true;
  } else if (name == "endurance") {
    path.endurance = endurance_of(attribute);
  } else {
    take_emulation(attribute);
  }
}

void Draft::take_emulation(Attribute const& attribute) {
  if (attribute.name == "emulate-duplex") {
    emulated_duplex = duplex_of(attribute);
    return;
  }
  emulated = true;
  if (attribute.name == "emulate-read") {
    emulation.read_rate = rate_of(attribute);
  } else if (attribute.name == "emulate-write") {
    emulation.write_rate = rate_of(attribute);
  } else if (attribute.name == "emulate-stream") {
    emulation.stream_rate = rate_of(attribute);
  } else if (attribute.name == "emulate-sharing") {
    emulation.sharing = sharing_of(attribute);
  } else {
    emulation.latency = latency_of(attribute);
  }
}

PathSettings Draft::finish() {
  if (emulated_duplex && !emulated) {
    throw UsageError{
        "emulate-duplex alone emulates nothing; add emulate-read, emulate-write or "
        "emulate-latency, or write duplex= in its place"};
  }
  if (emulation.sharing < 1.0 && emulation.read_rate <= 0.0 && emulation.write_rate <= 0.0) {
    throw UsageError{
        "emulate-sharing is a share of emulated rates; add emulate-read or emulate-write"};
  }
  if (duplex && emulated_duplex && *duplex != *emulated_duplex) {
    throw UsageError{"duplex and emulate-duplex contradict each other; leave duplex out"};
  }
  path.duplex = emulated_duplex.value_or(duplex.value_or(Duplex::half));
  if (emulated) {
    emulation.duplex = path.duplex;
    path.emulation = emulation;
    path.read_rate = path.read_rate > 0.0 ? path.read_rate : emulation.read_rate;
    path.write_rate = path.write_rate > 0.0 ? path.write_rate : emulation.write_rate;
  }
  return path;
}

/// Errors: UsageError unless it is a known one with a value, or without where none belongs.
Attribute read_attribute(std::string_view text) {
  Attribute attribute = split(text);
  if (text.empty()) {
    throw UsageError{"an attribute is empty; write one name=value between two commas"};
  }
  if (!known(attribute.name)) {
    throw UsageError{fmt::format(
        "unknown attribute '{}'; the nearest is {} (a directory's name cannot have a comma)",
        attribute.name, nearest(attribute.name, attributes()))};
  }
  if (attribute.name == "persistent" && attribute.has_value) {
    attribute.refuse("it has no value; write persistent, or leave it out");
  }
  if (attribute.name != "persistent" && !attribute.has_value) {
    throw UsageError{fmt::format("{} has no value; write {}=...", attribute.name, attribute.name)};
  }
  return attribute;
}

}  // namespace

PathSettings parse_path(std::string const& text) {
  std::string_view rest = text;
  auto const next = [&rest] {
    auto const comma = std::min(rest.find(','), rest.size());
    std::string_view const part = rest.substr(0, comma);
    rest.remove_prefix(comma);
    return part;
  };
  Draft draft;
  draft.path.directory = next();
  if (draft.path.directory.empty()) {
    throw UsageError{"no directory is named; write DIR, or DIR,name=value,..."};
  }
  if (Attribute const first = split(draft.path.directory); first.has_value && known(first.name)) {
    throw UsageError{fmt::format("{} stands where the directory belongs; write DIR,{}",
                                 draft.path.directory, draft.path.directory)};
  }
  std::vector<std::string> seen;
  while (!rest.empty()) {
    rest.remove_prefix(1);
    Attribute const attribute = read_attribute(next());
    if (std::ranges::find(seen, attribute.name) != seen.end()) {
      throw UsageError{fmt::format("{} comes twice; write it once", attribute.name)};
    }
    seen.push_back(attribute.name);
    draft.take(attribute);
  }
  return draft.finish();
}

}  // namespace offstage::tiers
