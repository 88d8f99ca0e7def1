#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "report/parts.hpp"
#include "report/sections.hpp"

namespace offstage::report {
namespace {

/// Points of a run's line over time, all starts together.
constexpr std::size_t points_over_time = 400;

std::string of_run(Run const& run, std::size_t runs) {
  return runs > 1 ? run.name + ": " : std::string{};
}

/// The part of the time from step to step for which the path was busy; above 1 where transfers
/// overlapped more than its settings say.
double busy_part(PathTotals const& path) {
  return path.busy_seconds / path.counted_seconds;
}

/// `overlap`: how many transfers shared the path at a time.
BarRow rate_row(std::string label, char const* look, double bytes, double seconds, double overlap,
                double can) {
  double const rate = seconds > 0.0 ? overlap * bytes / seconds / 1e9 : unknown;
  auto const words = std::isnan(rate) ? std::string{"nothing"}
                     : std::isnan(can)
                         ? fmt::format("{:.3g} GB/s, {}", rate, gigabytes(bytes))
                         : fmt::format("{:.3g} of {:.3g} GB/s, {}", rate, can, gigabytes(bytes));
  return {.label = std::move(label),
          .look = look,
          .value = rate,
          .words = words,
          .limits = {{can, "ink", fmt::format("can: {:.3g} GB/s", can)}}};
}

std::string with_host(Memory const& memory) {
  double const together = memory.host_planned + memory.host_libraries;
  return fmt::format("planned, libraries included: {}", gigabytes(together));
}

/// Adds a row, unless the record does not say what was planned: it is damaged.
void add_memory_row(std::vector<BarRow>& rows, std::string label, double peak, double planned,
                    double limit, std::string const& planned_tip) {
  if (std::isnan(planned)) {
    return;
  }
  std::string words =
      std::isnan(peak) ? "no peak recorded, " + gigabytes(planned) + " planned" : gigabytes(peak);
  words += std::isnan(limit) ? ", no limit" : " of " + gigabytes(limit);
  rows.push_back({.label = std::move(label),
                  .look = "forward",
                  .value = peak,
                  .words = words,
                  .limits = {{planned, "planned", planned_tip},
                             {limit, "limited", "limit: " + gigabytes(limit)}}});
}

/// The rows in GB, or in MB where they are small; empty without rows.
std::string memory_figure(std::string const& caption, std::string const& title,
                          std::vector<BarRow> rows) {
  if (rows.empty()) {
    return {};
  }
  Range range;
  for (BarRow const& row : rows) {
    range.take(row.value);
    for (BarRow::Limit const& limit : row.limits) {
      range.take(limit.value);
    }
  }
  bool const large = range.high >= 1e9;
  double const unit = large ? 1e9 : 1e6;
  for (BarRow& row : rows) {
    row.value /= unit;
    for (BarRow::Limit& limit : row.limits) {
      limit.value /= unit;
    }
  }
  return figure(caption, bars(title, large ? "GB" : "MB", rows));
}

/// The saves that are drawn. Those of nodes' storage may be far more than those of level 2.
std::vector<Save> shown_saves(Run const& run) {
  std::vector<Save> shown;
  for (bool const of_nodes : {true, false}) {
    std::vector<Save> all;
    std::ranges::copy_if(run.saves, std::back_inserter(all),
                         [=](Save const& save) { return (save.level != 2) == of_nodes; });
    std::ranges::copy(thinned(all, most_marks), std::back_inserter(shown));
  }
  return shown;
}

}  // namespace

std::string storage_section(std::vector<Run> const& runs) {
  std::vector<BarRow> rates, busy;
  bool emulated = false, overlapped = false;
  for (Run const& run : runs) {
    for (PathTotals const& path : run.paths) {
      if (path.counted_seconds <= 0.0) {
        continue;
      }
      auto const label = of_run(run, runs.size()) + path.directory;
      double const part = busy_part(path), overlap = std::max(1.0, part * path.sharing_transfers);
      rates.push_back(rate_row(label + " read", "forward", path.read_bytes, path.read_seconds,
                               overlap, path.can_read));
      rates.push_back(rate_row(label + " write", "backward", path.write_bytes, path.write_seconds,
                               overlap, path.can_write));
      busy.push_back({.label = label,
                      .look = "update",
                      .value = 100.0 * std::min(1.0, part),
                      .words = part > 1.0
                                   ? fmt::format("100 %, transfers overlap {:.2g} times", part)
                                   : fmt::format("{:.1f} %", 100.0 * part),
                      .limits = {{100.0, "ink", "all of the time"}}});
      emulated = emulated || path.emulated;
      overlapped = overlapped || overlap > 1.0;
    }
  }
  if (rates.empty()) {
    return {};
  }
  std::string words =
      "The mean over all steps and what was between them, of all ranks together. A line is what a "
      "node can, as it was given "
      "or measured "
      "at the start. A path is busy while it transfers: near 100 % it is what bounds the step.";
  if (overlapped) {
    words += " Where transfers overlapped, a rate is that of all of them together.";
  }
  if (emulated) {
    words +=
        " Some paths are emulated: their figures are of a throttled directory, not of a device.";
  }
  return section(
      "Storage paths", words,
      {{Key::Shape::box, "forward", "read"},
       {Key::Shape::box, "backward", "write"},
       {Key::Shape::box, "update", "busy"},
       {Key::Shape::limit, "ink", "what the path can"}},
      figure("Bandwidth inside transfers", bars("bandwidth of paths", "GB/s", rates)) +
          figure("How busy", bars("how busy paths are", "% of the time from step to step", busy)));
}

std::string memory_section(std::vector<Run> const& runs) {
  std::vector<BarRow> host, device;
  for (Run const& run : runs) {
    Memory const& memory = run.memory;
    if (std::isnan(memory.host_limit)) {
      continue;
    }
    auto const label = of_run(run, runs.size());
    add_memory_row(host, label + "host, per node", memory.host_peak,
                   memory.host_planned + memory.host_libraries, memory.host_limit,
                   with_host(memory));
    add_memory_row(device, label + "device, per rank", memory.device_peak, memory.device_planned,
                   memory.device_limit, "planned: " + gigabytes(memory.device_planned));
  }
  if (host.empty() && device.empty()) {
    return {};
  }
  return section("Memory",
                 "The most that was taken at a time. Host memory is that of state, gradients and "
                 "buffers on rank 0's "
                 "node, libraries included; device memory is that of the rank with most.",
                 {{Key::Shape::box, "forward", "peak"},
                  {Key::Shape::limit, "planned", "planned"},
                  {Key::Shape::limit, "limited", "limit"}},
                 memory_figure("Host memory", "host memory", host) +
                     memory_figure("Device memory", "device memory", device));
}

std::string time_section(std::vector<Run> const& runs) {
  Range time{0.0, 0.0}, steps{0.0, 1.0};
  for (Run const& run : runs) {
    steps.take(static_cast<double>(run.steps()));
    for (Start const& start : run.starts) {
      time.take(start.last_at);
    }
  }
  if (time.high <= 0.0) {
    return {};
  }
  auto const unit = time_unit(time.high);
  Plot plot{"steps over time",
            {.label = fmt::format("time since the first start, {}", unit.name),
             .range = time,
             .fits = true,
             .unit = unit.seconds},
            {.label = "step", .range = steps},
            {.height = 360.0}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Run const& run = runs[i];
    auto const look = run_look(i);
    std::size_t const points_of_a_start =
        std::max<std::size_t>(2, points_over_time / std::max<std::size_t>(1, run.starts.size()));
    for (std::size_t number = 0; number < run.starts.size(); ++number) {
      Start const& start = run.starts[number];
      std::vector<Point> points{{start.at, static_cast<double>(start.step)}};
      for (Step const& step : start.steps) {
        points.push_back({step.at, static_cast<double>(step.number)});
      }
      plot.line(thinned(points, points_of_a_start), "bold " + look);
      auto const job = start.job.empty() ? "" : fmt::format(", job {}", start.job);
      plot.mark(points.front(), Mark::triangle, look,
                fmt::format("{}: start {} after step {}\n{}{}\n{} rank{} on {} node{}", run.name,
                            number + 1, start.step, start.time, job, start.ranks,
                            start.ranks == 1 ? "" : "s", start.nodes.size(),
                            start.nodes.size() == 1 ? "" : "s"));
    }
    for (Save const& save : shown_saves(run)) {
      auto const mark = save.level == 2 ? Mark::square : Mark::diamond;
      plot.mark(
          {save.at, static_cast<double>(save.step)}, mark,
          save.level == 1 ? "hollow " + look : look,
          fmt::format("{}: step {} saved, level {}\nin {:.3g} s; training stood still for {:.3g} s",
                      run.name, save.step, save.level, save.seconds, save.stood_still));
    }
  }
  auto keys = run_keys(runs);
  keys.push_back({Key::Shape::triangle, "ink", "start"});
  keys.push_back({Key::Shape::square, "ink", "save complete"});
  keys.push_back({Key::Shape::diamond, "hollow ink", "level 1, node storage"});
  keys.push_back({Key::Shape::diamond, "ink", "level 3, other nodes"});
  return section("Starts, saves and steps over time",
                 "Between two lines of a run nothing ran. Steps that were lost and done again are "
                 "shown once, as "
                 "they were done last.",
                 keys, figure("Steps over time", plot.text()));
}

}  // namespace offstage::report
