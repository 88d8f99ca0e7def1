#include "train/report/storage_totals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <type_traits>

#include "base/error.hpp"
#include "base/rate.hpp"
#include "train/report/wear.hpp"

namespace offstage::train {
namespace {

using tiers::PathTraffic;

// Stands for a rate or a time that there is not.
constexpr char const* nothing = "-";

std::string shown(double rate) {
  return rate > 0.0 ? format_rate(rate) : nothing;
}

std::string share_of(Bytes part, Bytes all) {
  double const share = all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0.0;
  return fmt::format("{} ({:.1f} %)", format_bytes(part), 100.0 * share);
}

}  // namespace

void StorageTotals::add(StorageStep const& step) {
  if (step.paths.empty()) {
    return;  // a run without paths
  }
  ++steps_;
  if (sum_.paths.empty()) {
    sum_ = step;
  } else {
    require(step.paths.size() == sum_.paths.size(), "the paths of a run stay the same");
    sum_.seconds += step.seconds;
    sum_.hits += step.hits;
    sum_.misses += step.misses;
    sum_.host_bytes = step.host_bytes;
    for (std::size_t i = 0; i < sum_.paths.size(); ++i) {
      add_to(sum_.paths[i].traffic, step.paths[i].traffic);
      sum_.paths[i].resident_bytes = step.paths[i].resident_bytes;
    }
  }
  if (double const rate = step.effective_rate; rate > 0.0) {
    effective_least_ = updates_ == 0 ? rate : std::min(effective_least_, rate);
    effective_most_ = std::max(effective_most_, rate);
    effective_sum_ += rate;
    ++updates_;
  }
}

std::string StorageTotals::line_of(PathStep const& path, Bytes state, std::size_t width) const {
  PathTraffic const& traffic = path.traffic;
  return fmt::format("  {:<{}} {:>10} {:>10} {:>10} {:>10} {:>7.1f} % {:>9.2f} s {:>7.3f} s  {}",
                     path.directory, width, format_bytes(traffic.read.bytes),
                     format_bytes(traffic.write.bytes), shown(transfer_rate(traffic.read)),
                     shown(transfer_rate(traffic.write)), 100.0 * busy_part(path, sum_),
                     lock_wait(path).count(), longest_wait(path).count(),
                     share_of(path.resident_bytes, state));
}

std::vector<std::string> StorageTotals::lines() const {
  if (sum_.paths.empty()) {
    return {};
  }
  Bytes state = sum_.host_bytes;
  std::size_t width = 16;
  for (PathStep const& path : sum_.paths) {
    state += path.resident_bytes;
    width = std::max(width, path.directory.size());
  }
  std::vector<std::string> lines{
      "storage of the steps and between them, all ranks; rates inside transfers:",
      fmt::format("  {:<{}} {:>10} {:>10} {:>10} {:>10} {:>9} {:>11} {:>9}  {}", "path", width,
                  "read", "written", "rate in", "out", "busy", "lock wait", "longest",
                  "state at the end")};
  for (PathStep const& path : sum_.paths) {
    lines.push_back(line_of(path, state, width));
    if (path.endurance > 0 && sum_.seconds.count() > 0.0) {
      auto const times = static_cast<Bytes>(steps_) * sum_.nodes;
      lines.push_back("    on each node " + wear_in_words(path.traffic.write.bytes / times,
                                                          sum_.seconds / steps_, path.endurance));
    }
    if (path.emulated) {
      lines.emplace_back("    emulated: figures of a throttled directory, not of a device");
    }
  }
  lines.push_back(
      fmt::format("  {:<{}} {:>77}{}", "host memory", width, "", share_of(sum_.host_bytes, state)));
  lines.push_back(
      fmt::format("subgroups fetched: {} read, {} found in host memory", sum_.misses, sum_.hits));
  // Without reads the rate would be one of waits alone.
  if (updates_ > 0 && sum_.misses > 0) {
    lines.push_back(
        fmt::format("effective I/O throughput per update: {}, from {} to {}{}",
                    format_rate(effective_sum_ / static_cast<double>(updates_)),
                    format_rate(effective_least_), format_rate(effective_most_),
                    std::ranges::any_of(sum_.paths, &PathStep::emulated) ? " (emulated)" : ""));
  }
  return lines;
}

}  // namespace offstage::train
