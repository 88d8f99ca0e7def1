#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>

#include "report/parts.hpp"
#include "report/sections.hpp"

namespace offstage::report {
namespace {

/// More than can be told apart on a page.
constexpr std::size_t most_points = 800;
constexpr Size half_page{.width = 480.0, .height = 250.0};

/// All but the highest and lowest hundredth, which would flatten the rest.
Range usual_range(std::vector<Point> const& points) {
  std::vector<double> values;
  for (Point const& point : points) {
    if (std::isfinite(point.y)) {
      values.push_back(point.y);
    }
  }
  std::ranges::sort(values);
  Range range;
  if (!values.empty()) {
    std::size_t const cut = values.size() / 100;
    range = {values[cut], values[values.size() - 1 - cut]};
  }
  return range;
}

void join(Range& range, Range const& other) {
  if (!other.empty()) {
    range.take(other.low);
    range.take(other.high);
  }
}

/// A curve as it is, or where it has many points the space that it fills.
void draw_noise(Plot& plot, std::vector<Point> const& points, std::string const& look) {
  if (points.size() <= most_points) {
    plot.line(points, "thin " + look);
  } else {
    auto const around = envelope(points, most_points / 2);
    plot.band(around.low, around.high, look);
  }
}

Plot loss_plot(std::vector<Run> const& runs) {
  Range range;
  for (Run const& run : runs) {
    auto const losses = curve(run, &Step::loss);
    join(range, usual_range(losses));
    for (Validation const& each : run.validations) {
      range.take(each.loss);
    }
  }
  Plot plot{"loss over steps",
            step_axis(runs),
            {.label = "loss, nats per token", .range = range},
            {.height = 380.0}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    draw_noise(plot, curve(runs[i], &Step::loss), run_look(i));
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto const smoothed = smooth(curve(runs[i], &Step::loss));
    plot.line(thinned(smoothed, most_points), "bold " + run_look(i));
    for (Validation const& each : thinned(runs[i].validations, most_marks)) {
      plot.mark({static_cast<double>(each.step), each.loss}, Mark::circle, "hollow " + run_look(i),
                fmt::format("{}: validation loss {:.4f} after step {}{}{}", runs[i].name, each.loss,
                            each.step, each.sources.empty() ? "" : ": ", each.sources));
    }
  }
  return plot;
}

/// Tokens and seconds of training until the end of a step.
struct Spent {
  double tokens = unknown, seconds = unknown;
};

/// Tokens and time until each step's end, by the step's number. Time between starts does not count.
std::map<std::int64_t, Spent> spent(Run const& run) {
  std::map<std::int64_t, Spent> all{{0, {0.0, 0.0}}};
  double before = 0.0;  // seconds of earlier starts
  for (Start const& start : run.starts) {
    for (Step const& step : start.steps) {
      all[step.number] = {step.tokens, before + step.at - start.at};
    }
    before += start.last_at - start.at;
  }
  return all;
}

/// Losses of several runs over what they spent, so that runs with other batches or on other
/// machines compare.
std::string losses_over(std::vector<Run> const& runs, double Spent::*x, Axis across,
                        std::string const& caption) {
  std::vector<std::vector<Point>> losses(runs.size()), validations(runs.size());
  Axis down{.label = "loss", .range = {}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto const at = spent(runs[i]);
    auto const place = [&](double step) {
      auto const found = at.find(static_cast<std::int64_t>(step));
      return found == at.end() ? unknown : found->second.*x;
    };
    for (Point const& point : smooth(curve(runs[i], &Step::loss))) {
      losses[i].push_back({place(point.x), point.y});
      across.range.take(losses[i].back().x);
    }
    join(down.range, usual_range(losses[i]));
    for (Validation const& each : runs[i].validations) {
      validations[i].push_back({place(static_cast<double>(each.step)), each.loss});
      down.range.take(each.loss);
    }
  }
  if (across.range.high <= 0.0) {
    return {};
  }
  Plot plot{caption, std::move(across), std::move(down), half_page};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    plot.line(thinned(losses[i], most_points), "bold " + run_look(i));
    for (Point const& each : thinned(validations[i], most_marks)) {
      plot.mark(each, Mark::circle, "hollow " + run_look(i),
                fmt::format("{}: validation loss {:.4f}", runs[i].name, each.y));
    }
  }
  return figure(caption, plot.text(), true);
}

/// Losses over tokens and over time; empty for one run, whose steps tell as much.
std::string comparisons(std::vector<Run> const& runs) {
  if (runs.size() < 2) {
    return {};
  }
  double longest = 0.0;
  for (Run const& run : runs) {
    for (auto const& [step, until] : spent(run)) {
      longest = std::fmax(longest, until.seconds);
    }
  }
  auto const unit = time_unit(longest);
  return losses_over(runs, &Spent::tokens, {.label = "tokens", .range = {0.0, 0.0}, .fits = true},
                     "Smoothed loss over tokens") +
         losses_over(runs, &Spent::seconds,
                     {.label = fmt::format("time, {}", unit.name),
                      .range = {0.0, 0.0},
                      .fits = true,
                      .unit = unit.seconds},
                     "Smoothed loss over the time of kept steps");
}

/// One figure of all runs over the steps. `smoothed`: the running mean stands out.
std::string small(std::vector<Run> const& runs, Axis axis, double Step::*figure_of,
                  std::string const& caption, bool smoothed) {
  bool any = false;
  for (Run const& run : runs) {
    auto const points = curve(run, figure_of);
    auto const range = usual_range(smoothed ? smooth(points) : points);
    any = any || range.high > 0.0;
    join(axis.range, range);
  }
  if (!any || (axis.spacing == Spacing::logarithmic && axis.range.low <= 0.0)) {
    return {};
  }
  Plot plot{caption, step_axis(runs), std::move(axis), half_page};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    auto const points = curve(runs[i], figure_of);
    if (smoothed) {
      draw_noise(plot, points, run_look(i));
      plot.line(thinned(smooth(points), most_points), "bold " + run_look(i));
    } else {
      plot.line(thinned(points, most_points), "bold " + run_look(i));
    }
  }
  return figure(caption, plot.text(), true);
}

}  // namespace

std::string loss_section(std::vector<Run> const& runs) {
  bool any = false;
  std::size_t validations = 0;  // of the run that has most
  for (Run const& run : runs) {
    any = any || run.last() != nullptr;
    validations = std::max(validations, run.validations.size());
  }
  if (!any) {
    return {};
  }
  auto keys = run_keys(runs);
  keys.push_back({Key::Shape::line, "thin ink", "each step"});
  keys.push_back({Key::Shape::line, "bold ink", "smoothed over some 10 steps"});
  if (validations > 0) {
    keys.push_back({Key::Shape::circle, "hollow ink",
                    validations > most_marks ? "validation, a few of many" : "validation"});
  }
  std::string const pictures =
      figure("Loss", loss_plot(runs).text()) + comparisons(runs) +
      small(runs, {.label = "norm", .range = {}, .spacing = Spacing::logarithmic}, &Step::norm,
            "Norm of the gradient, before clipping", true) +
      small(runs, {.label = "rate", .range = {0.0, 0.0}}, &Step::rate, "Learning rate", false);
  return section("Loss", "The mean over a step's tokens, in nats.", keys, pictures);
}

std::string speed_section(std::vector<Run> const& runs) {
  // Tokens of a step are what the count has grown by. The first step of a file does not tell that,
  // nor does one behind steps whose records are missing.
  std::vector<Run> speeds = runs;
  for (Run& run : speeds) {
    std::int64_t number = 0;
    double before = 0.0;
    for (Start& start : run.starts) {
      for (Step& step : start.steps) {
        double const now = step.tokens;
        bool const follows = step.number == number + 1;
        step.tokens = follows ? (now - before) / step.seconds : unknown;
        number = step.number;
        before = now;
      }
    }
  }
  std::string const pictures =
      small(speeds, {.label = "tokens/s", .range = {0.0, 0.0}}, &Step::tokens, "Tokens per second",
            true) +
      small(speeds, {.label = "TFLOP/s", .range = {0.0, 0.0}}, &Step::tflops,
            "Floating-point operations of the model", true) +
      small(speeds, {.label = "part of what products reach", .range = {0.0, 0.0}}, &Step::mfu,
            "Use of the devices (MFU)", true);
  if (pictures.empty()) {
    return {};
  }
  return section(
      "Speed", "Of each step by itself, so that saves and validations between steps do not count.",
      run_keys(runs), pictures);
}

}  // namespace offstage::report
