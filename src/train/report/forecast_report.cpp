#include "train/report/forecast_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/rate.hpp"
#include "train/report/storage_totals.hpp"

namespace offstage::train {
namespace {

/// How far `reached` is from what was expected: "+12.5 %", or "x 55" from ten times on.
std::string difference(double expected, double reached) {
  constexpr double most = 10.0;
  if (expected <= 0.0) {
    return "-";
  }
  double const times = reached / expected;
  return times < most ? fmt::format("{:+.1f} %", 100.0 * (times - 1.0))
                      : fmt::format("x {:.0f}", times);
}

std::string line_of(char const* phase, Seconds expected, Seconds reached) {
  return fmt::format("  {:<12} {:>10.4f} s {:>10.4f} s {:>10}", phase, expected.count(),
                     reached.count(), difference(expected.count(), reached.count()));
}

std::string moved(double bytes, double rate) {
  return fmt::format("{} at {}", format_bytes(static_cast<Bytes>(std::llround(bytes))),
                     rate > 0.0 ? format_rate(rate) : "no known rate");
}

}  // namespace

void ForecastReport::add(StepTimes const& times) {
  ++steps_;
  if (!forecast_) {
    return;
  }
  bool const first_alone = steps_ == 2 && counted_ == 1;
  if (counted_ == 0 || first_alone) {
    counted_ = 1;
    sum_ = times;
    return;
  }
  ++counted_;
  sum_.forward += times.forward;
  sum_.backward += times.backward;
  sum_.update += times.update;
  sum_.step += times.step;
  sum_.storage.seconds += times.storage.seconds;
  auto& paths = sum_.storage.paths;
  for (std::size_t i = 0; i < std::min(paths.size(), times.storage.paths.size()); ++i) {
    add_to(paths[i].traffic, times.storage.paths[i].traffic);
  }
}

std::vector<std::string> ForecastReport::lines() const {
  if (!forecast_ || counted_ == 0) {
    return {};
  }
  auto const& expected = forecast_->step;
  auto const mean = [this](Seconds sum) { return sum / static_cast<double>(counted_); };
  std::string const unknown =
      forecast_->unknown.empty()
          ? ""
          : fmt::format("; as if they took no time: {}", fmt::join(forecast_->unknown, ", "));
  std::vector<std::string> lines{
      fmt::format("predicted, achieved, mean of {} step{}; {}{}", counted_,
                  counted_ == 1 ? "" : "s",
                  forecast_->given ? "by rates that were given or measured at the start"
                                   : "by rates of the first steps where none were given",
                  unknown),
      line_of("forward", expected.forward, mean(sum_.forward)),
      line_of("backward", expected.backward, mean(sum_.backward)),
      line_of("update", expected.update, mean(sum_.update)),
      line_of("step", expected.step, mean(sum_.step))};
  add_paths(lines);
  return lines;
}

void ForecastReport::add_paths(std::vector<std::string>& lines) const {
  auto const& expected = forecast_->step.paths;
  auto const& paths = sum_.storage.paths;
  for (std::size_t i = 0; i < std::min(paths.size(), expected.size()); ++i) {
    auto const ranks = static_cast<double>(ranks_);
    auto const& traffic = paths[i].traffic;
    auto const add = [&](char const* what, Bytes bytes, double rate,
                         tiers::DirectionTraffic const& reached) {
      lines.push_back(
          fmt::format("  {} {}: {}, {}", paths[i].directory, what,
                      moved(static_cast<double>(bytes) * ranks, rate),
                      moved(static_cast<double>(reached.bytes) / static_cast<double>(counted_),
                            reached_rate(reached, paths[i], sum_.storage))));
    };
    add("read", expected[i].read, forecast_->paths[i].read, traffic.read);
    add("written", expected[i].written, forecast_->paths[i].write, traffic.write);
  }
}

}  // namespace offstage::train
