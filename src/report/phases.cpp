#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "report/parts.hpp"
#include "report/sections.hpp"

namespace offstage::report {
namespace {

struct Phase {
  char const* name;
  double Step::*of;
};
constexpr std::array<Phase, 3> phases{
    {{"forward", &Step::forward}, {"backward", &Step::backward}, {"update", &Step::update}}};
constexpr std::size_t most_bars = 60;

/// The mean of some steps that follow each other.
struct Bin {
  double first{}, last{};  ///< step numbers
  std::array<double, phases.size()> seconds{};
  double step{};
  double predicted = unknown;
};

std::vector<Step> steps_of(Run const& run) {
  std::vector<Step> steps;
  for (Start const& start : run.starts) {
    std::ranges::copy_if(start.steps, std::back_inserter(steps),
                         [](Step const& step) { return std::isfinite(step.seconds); });
  }
  return steps;
}

double or_nothing(double value) {
  return std::isfinite(value) ? value : 0.0;
}

std::vector<Bin> bins_of(std::vector<Step> const& steps) {
  std::size_t const stride = std::max<std::size_t>(1, (steps.size() + most_bars - 1) / most_bars);
  std::vector<Bin> bins;
  for (std::size_t begin = 0; begin < steps.size(); begin += stride) {
    std::size_t const end = std::min(steps.size(), begin + stride);
    auto const count = static_cast<double>(end - begin);
    Bin bin{.first = static_cast<double>(steps[begin].number),
            .last = static_cast<double>(steps[end - 1].number)};
    for (std::size_t i = begin; i < end; ++i) {
      for (std::size_t phase = 0; phase < phases.size(); ++phase) {
        bin.seconds[phase] += or_nothing(steps[i].*phases[phase].of) / count;
      }
      bin.step += steps[i].seconds / count;
    }
    bin.predicted = steps[end - 1].predicted;
    bins.push_back(bin);
  }
  return bins;
}

/// So high that all but the first steps, which may take much longer, are seen whole.
Range height_of(std::vector<Bin> const& bins) {
  Range usual{0.0, 0.0};
  for (std::size_t i = bins.size() > 2 ? 1 : 0; i < bins.size(); ++i) {
    usual.take(bins[i].step);
    usual.take(bins[i].predicted);
  }
  constexpr double hardly_more = 1.5;
  if (bins.front().step < hardly_more * usual.high) {
    usual.take(bins.front().step);
  }
  return usual;
}

void stack(Plot& plot, Bin const& bin) {
  std::string tip = bin.first == bin.last
                        ? fmt::format("step {:.0f}", bin.first)
                        : fmt::format("steps {:.0f} to {:.0f}, mean", bin.first, bin.last);
  double named = 0.0;
  for (std::size_t phase = 0; phase < phases.size(); ++phase) {
    tip += fmt::format("\n{} {:.4g} s", phases[phase].name, bin.seconds[phase]);
    named += bin.seconds[phase];
  }
  double const rest = std::max(0.0, bin.step - named);
  tip += fmt::format("\nother {:.4g} s\ntogether {:.4g} s", rest, bin.step);
  double const gap = 0.06 * (bin.last - bin.first + 1.0);
  Range const x{bin.first - 1.0 + gap, bin.last - gap};
  double below = 0.0;
  auto const add = [&](double seconds, char const* look) {
    if (seconds > 0.0) {
      plot.bar(x, {below, below + seconds}, look, tip);
    }
    below += seconds;
  };
  for (std::size_t phase = 0; phase < phases.size(); ++phase) {
    add(bin.seconds[phase], phases[phase].name);
  }
  add(rest, "other");
}

std::string picture(Run const& run, std::vector<Bin> const& bins, bool half) {
  Size const size = half ? Size{.width = 480.0, .height = 280.0} : Size{};
  Plot plot{"phases of a step of " + run.name,
            step_axis({run}),
            {.label = "seconds per step", .range = height_of(bins)},
            size};
  std::vector<Point> predicted;
  for (Bin const& bin : bins) {
    stack(plot, bin);
    predicted.push_back({bin.first - 1.0, bin.predicted});
    predicted.push_back({bin.last, bin.predicted});
  }
  plot.line(predicted, "bold dashed ink");
  return plot.text();
}

}  // namespace

std::string phase_section(std::vector<Run> const& runs) {
  std::string pictures;
  bool foreseen = false;
  for (Run const& run : runs) {
    if (auto const bins = bins_of(steps_of(run)); !bins.empty()) {
      bool const half = runs.size() > 1;
      pictures += figure(half ? run.name : "Phases of a step", picture(run, bins, half), half);
      foreseen = foreseen || !run.forecasts.empty();
    }
  }
  if (pictures.empty()) {
    return {};
  }
  std::vector<Key> keys;
  for (Phase const& phase : phases) {
    keys.push_back({Key::Shape::box, phase.name, phase.name});
  }
  keys.push_back({Key::Shape::box, "other", "other"});
  if (foreseen) {
    keys.push_back({Key::Shape::line, "bold dashed ink", "step as predicted"});
  }
  return section(
      "Phases of a step",
      "Seconds that the step waited for each, on rank 0. What goes on under another phase, as an "
      "update under backward, has no time of its own. A bar is the mean of its steps.",
      keys, pictures);
}

Forecast achieved(Run const& run, Forecast const& forecast) {
  if (forecast.start >= run.starts.size()) {
    return {};
  }
  std::vector<Step> counted;
  auto const& steps = run.starts[forecast.start].steps;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    bool const first_of_many = i == 0 && steps.size() > 1;
    if (std::isfinite(steps[i].predicted) && steps[i].number > forecast.after && !first_of_many) {
      counted.push_back(steps[i]);
    }
  }
  if (counted.empty()) {
    return {};
  }
  auto const mean = [&](double Step::*of) {
    double sum = 0.0;
    for (Step const& step : counted) {
      sum += or_nothing(step.*of);
    }
    return sum / static_cast<double>(counted.size());
  };
  return {.given = forecast.given,
          .after = counted.front().number - 1,
          .start = forecast.start,
          .step = mean(&Step::seconds),
          .forward = mean(&Step::forward),
          .backward = mean(&Step::backward),
          .update = mean(&Step::update)};
}

namespace {

struct Comparison {
  Forecast expected, reached;
};

/// The last forecast that steps followed, and what these reached.
Comparison last_comparison(Run const& run) {
  for (auto expected = run.forecasts.rbegin(); expected != run.forecasts.rend(); ++expected) {
    if (auto const reached = achieved(run, *expected); !std::isnan(reached.step)) {
      return {*expected, reached};
    }
  }
  return {};
}

}  // namespace

std::string forecast_section(std::vector<Run> const& runs) {
  struct Row {
    char const* name;
    double Forecast::*of;
  };
  static constexpr std::array<Row, 4> rows{{{"forward", &Forecast::forward},
                                            {"backward", &Forecast::backward},
                                            {"update", &Forecast::update},
                                            {"step", &Forecast::step}}};
  std::string pictures;
  for (Run const& run : runs) {
    auto const [expected, reached] = last_comparison(run);
    if (std::isnan(reached.step)) {
      continue;
    }
    std::vector<BarRow> all;
    for (Row const& row : rows) {
      double const was = reached.*row.of, foreseen = expected.*row.of;
      auto const by =
          foreseen > 0.0 ? fmt::format(" ({:+.1f} %)", 100.0 * (was / foreseen - 1.0)) : "";
      all.push_back({.label = row.name,
                     .look = row.of == &Forecast::step ? "other" : row.name,
                     .value = was,
                     .words = fmt::format("{:.3g} s{}", was, by),
                     .limits = {{foreseen, "ink", fmt::format("predicted: {:.3g} s", foreseen)}}});
    }
    bool const half = runs.size() > 1;
    auto const what =
        fmt::format("{}, from step {} on, {}", run.name, reached.after + 1,
                    expected.given ? "by rates that were given or measured at the start"
                                   : "by rates that its first steps reached");
    pictures += figure(what,
                       bars("predicted and achieved phases of " + run.name,
                            "seconds per step, mean", all, half ? 480.0 : 960.0),
                       half);
  }
  if (pictures.empty()) {
    return {};
  }
  return section("Predicted and achieved",
                 "A start simulates its own steps before it makes them. These are the last start "
                 "that has done so. In brackets: how much more or less its steps took.",
                 {{Key::Shape::box, "other", "achieved"}, {Key::Shape::limit, "ink", "predicted"}},
                 pictures);
}

}  // namespace offstage::report
