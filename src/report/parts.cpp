#include "report/parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/smoothed.hpp"
#include "report/sections.hpp"

namespace offstage::report {
namespace {

std::string swatch(Key const& key) {
  constexpr char const* opening = "<svg class=\"key\" viewBox=\"0 0 26 14\" aria-hidden=\"true\">";
  auto const mark = [&](char const* shape) {
    return fmt::format(
        R"svg({}<path class="mark {}" transform="translate(13 7)" d="{}"/></svg>)svg", opening,
        key.look, shape);
  };
  switch (key.shape) {
    case Key::Shape::line:
      break;
    case Key::Shape::box:
      return fmt::format(R"({}<rect class="bar {}" x="6" y="1" width="14" height="12"/></svg>)",
                         opening, key.look);
    case Key::Shape::circle:
      return fmt::format(R"({}<circle class="mark {}" cx="13" cy="7" r="4"/></svg>)", opening,
                         key.look);
    case Key::Shape::square:
      return mark("M-4-4H4V4H-4Z");
    case Key::Shape::diamond:
      return mark("M0-5.5L5.5 0L0 5.5L-5.5 0Z");
    case Key::Shape::triangle:
      return mark("M0-5.5L5 4.5H-5Z");
    case Key::Shape::limit:
      return fmt::format(R"({}<path class="limit {}" d="M13 0V14"/></svg>)", opening, key.look);
  }
  return fmt::format(R"({}<path class="line {}" d="M1 7H25"/></svg>)", opening, key.look);
}

}  // namespace

std::string run_look(std::size_t run) {
  constexpr std::size_t colours = 7;
  char const* const more = run < colours ? "" : run < 2 * colours ? " dashed" : " dotted";
  return fmt::format("c{}{}", run % colours, more);
}

std::string legend(std::vector<Key> const& keys) {
  if (keys.empty()) {
    return {};
  }
  std::string text = "<ul class=\"legend\">";
  for (Key const& key : keys) {
    text += fmt::format("<li>{}{}</li>", swatch(key), escaped(key.words));
  }
  return text + "</ul>";
}

std::vector<Key> run_keys(std::vector<Run> const& runs) {
  std::vector<Key> keys;
  for (std::size_t i = 0; runs.size() > 1 && i < runs.size(); ++i) {
    keys.push_back({Key::Shape::line, "bold " + run_look(i), runs[i].name});
  }
  return keys;
}

std::string section(std::string_view heading, std::string_view words, std::vector<Key> const& keys,
                    std::string const& pictures) {
  return fmt::format(
      "<section>\n<h2>{}</h2>\n<p>{}</p>\n{}\n<div class=\"figures\">{}</div>\n</section>\n",
      escaped(heading), words, legend(keys), pictures);
}

std::string figure(std::string_view caption, std::string const& picture, bool half) {
  return fmt::format("\n<figure{}><figcaption>{}</figcaption>{}</figure>",
                     half ? " class=\"half\"" : "", escaped(caption), picture);
}

std::vector<Point> curve(Run const& run, std::function<double(Step const&)> const& of) {
  std::vector<Point> points;
  for (Start const& start : run.starts) {
    for (Step const& step : start.steps) {
      points.push_back({static_cast<double>(step.number), of(step)});
    }
  }
  return points;
}

std::vector<Point> smooth(std::vector<Point> const& points) {
  Smoothed mean;
  std::vector<Point> smoothed;
  smoothed.reserve(points.size());
  for (Point const& point : points) {
    double const now = mean.add(point.y);
    smoothed.push_back({point.x, std::isfinite(point.y) ? now : unknown});
  }
  return smoothed;
}

Envelope envelope(std::vector<Point> const& points, std::size_t most) {
  std::size_t const stride = std::max<std::size_t>(1, (points.size() + most - 1) / most);
  Envelope around;
  for (std::size_t begin = 0; begin < points.size(); begin += stride) {
    Range range;
    for (std::size_t i = begin; i < std::min(points.size(), begin + stride); ++i) {
      range.take(points[i].y);
    }
    if (!range.empty()) {
      around.low.push_back({points[begin].x, range.low});
      around.high.push_back({points[begin].x, range.high});
    }
  }
  return around;
}

Axis step_axis(std::vector<Run> const& runs) {
  std::int64_t last = 1;
  for (Run const& run : runs) {
    last = std::max(last, run.steps());
  }
  return {.label = "step", .range = {0.0, static_cast<double>(last)}, .fits = true};
}

std::string gigabytes(double bytes) {
  for (auto const& [size, name] : {std::pair{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}}) {
    if (bytes >= 0.9995 * size) {
      return fmt::format("{:.3g} {}", bytes / size, name);
    }
  }
  return fmt::format("{:.0f} B", bytes);
}

}  // namespace offstage::report
