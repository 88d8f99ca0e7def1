#include "report/plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/printable.hpp"

namespace offstage::report {
namespace {

struct Frame {
  double left = 70.0, right = 16.0, top = 12.0, bottom = 46.0;
};
constexpr Frame frame;
constexpr double gap_of_x_ticks = 110.0, gap_of_y_ticks = 45.0;

int wanted_ticks(double length, double gap) {
  return std::max(2, static_cast<int>(length / gap));
}

double part_of(Axis const& axis, double value) {
  auto const& [low, high] = axis.range;
  if (axis.spacing == Spacing::logarithmic) {
    return std::log(std::max(value, 1e-300) / low) / std::log(high / low);
  }
  return (value - low) / (high - low);
}

Axis settled(Axis axis, int wanted) {
  Range in_units{axis.range.low / axis.unit, axis.range.high / axis.unit};
  if (!axis.fits || in_units.high <= in_units.low) {
    in_units = widened(in_units, axis.spacing, wanted);
  }
  axis.range = {in_units.low * axis.unit, in_units.high * axis.unit};
  return axis;
}

std::vector<Tick> ticks_of(Axis const& axis, int wanted) {
  auto all = ticks({axis.range.low / axis.unit, axis.range.high / axis.unit}, axis.spacing, wanted);
  for (Tick& tick : all) {
    tick.value *= axis.unit;
  }
  return all;
}

std::string tip_of(std::string_view tip) {
  return tip.empty() ? std::string{} : fmt::format("<title>{}</title>", escaped(tip));
}

std::string opening(std::string const& title, double width, double height) {
  return fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">", width,
                     height, escaped(title));
}

/// A bar around the height `middle` that begins at `left`, its label before it, and its words
/// behind. `across` gives a value's place.
template <class Across>
std::string bar_row(BarRow const& row, double left, double middle, Across const& across) {
  constexpr double thick = 16.0;
  std::string text = fmt::format("<text class=\"row\" x=\"{:.2f}\" y=\"{:.2f}\">{}</text>",
                                 left - 10.0, middle + 4.0, escaped(row.label));
  double end = across(0.0);
  if (std::isfinite(row.value)) {
    end = across(row.value);
    text += fmt::format(
        "<rect class=\"bar {}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\">{}"
        "</rect>",
        row.look, left, middle - thick / 2.0, end - left, thick,
        tip_of(row.label + ": " + row.words));
  }
  for (BarRow::Limit const& limit : row.limits) {
    if (std::isfinite(limit.value)) {
      double const x = across(limit.value);
      text +=
          fmt::format("<path class=\"limit {}\" d=\"M{:.2f} {:.2f}V{:.2f}\">{}</path>", limit.look,
                      x, middle - thick / 2.0 - 4.0, middle + thick / 2.0 + 4.0, tip_of(limit.tip));
      end = std::max(end, x);
    }
  }
  return text + fmt::format("<text class=\"words\" x=\"{:.2f}\" y=\"{:.2f}\">{}</text>", end + 8.0,
                            middle + 4.0, escaped(row.words));
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string safe;
  for (char const c : printable_lines(text)) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

Plot::Plot(std::string title, Axis x, Axis y, Size size)
    : title_{std::move(title)},
      x_{settled(std::move(x), wanted_ticks(size.width, gap_of_x_ticks))},
      y_{settled(std::move(y), wanted_ticks(size.height, gap_of_y_ticks))},
      size_{size} {}

double Plot::across(double x) const {
  return frame.left + part_of(x_, x) * (size_.width - frame.left - frame.right);
}

double Plot::down(double y) const {
  double const part = std::clamp(part_of(y_, y), -1.0, 2.0);
  return size_.height - frame.bottom - part * (size_.height - frame.top - frame.bottom);
}

std::string Plot::path(std::vector<Point> const& points) const {
  std::string text;
  bool is_line = false;
  for (Point const& point : points) {
    bool const shown = std::isfinite(point.x) && std::isfinite(point.y);
    if (shown) {
      fmt::format_to(std::back_inserter(text), "{}{:.2f} {:.2f}", is_line ? 'L' : 'M',
                     across(point.x), down(point.y));
    }
    is_line = shown;
  }
  return text;
}

void Plot::line(std::vector<Point> const& points, std::string_view look) {
  if (auto const text = path(points); !text.empty()) {
    drawn_ += fmt::format("<path class=\"line {}\" d=\"{}\"/>", look, text);
  }
}

void Plot::band(std::vector<Point> const& low, std::vector<Point> const& high,
                std::string_view look) {
  std::vector<Point> around;
  std::ranges::copy_if(low, std::back_inserter(around),
                       [](Point const& point) { return std::isfinite(point.y); });
  std::copy_if(high.rbegin(), high.rend(), std::back_inserter(around),
               [](Point const& point) { return std::isfinite(point.y); });
  if (!around.empty()) {
    drawn_ += fmt::format("<path class=\"band {}\" d=\"{}Z\"/>", look, path(around));
  }
}

void Plot::mark(Point at, Mark mark, std::string_view look, std::string_view tip) {
  if (!std::isfinite(at.x) || !std::isfinite(at.y)) {
    return;
  }
  double const x = across(at.x), y = down(at.y);
  std::string shape;
  switch (mark) {
    case Mark::circle:
      shape =
          fmt::format("<circle class=\"mark {}\" cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"4\">", look, x, y);
      drawn_ += shape + tip_of(tip) + "</circle>";
      return;
    case Mark::square:
      shape = "M-4-4H4V4H-4Z";
      break;
    case Mark::diamond:
      shape = "M0-5.5L5.5 0L0 5.5L-5.5 0Z";
      break;
    case Mark::triangle:
      shape = "M0-5.5L5 4.5H-5Z";
      break;
  }
  drawn_ += fmt::format(
      "<path class=\"mark {}\" transform=\"translate({:.2f} {:.2f})\" d=\"{}\">{}</path>", look, x,
      y, shape, tip_of(tip));
}

void Plot::bar(Range x, Range y, std::string_view look, std::string_view tip) {
  if (y.empty() || x.empty()) {
    return;
  }
  drawn_ += fmt::format(
      "<rect class=\"bar {}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" "
      "height=\"{:.2f}\">{}</rect>",
      look, across(x.low), down(y.high), across(x.high) - across(x.low), down(y.low) - down(y.high),
      tip_of(tip));
}

std::string Plot::axes() const {
  std::string text;
  double const bottom = size_.height - frame.bottom;
  double const right = size_.width - frame.right;
  for (Tick const& tick : ticks_of(y_, wanted_ticks(size_.height, gap_of_y_ticks))) {
    double const y = down(tick.value);
    text += fmt::format(
        "<path class=\"grid\" d=\"M{:.2f} {:.2f}H{:.2f}\"/>"
        "<text class=\"tick y\" x=\"{:.2f}\" y=\"{:.2f}\">{}</text>",
        frame.left, y, right, frame.left - 8.0, y + 4.0, tick.label);
  }
  for (Tick const& tick : ticks_of(x_, wanted_ticks(size_.width, gap_of_x_ticks))) {
    double const x = across(tick.value);
    text += fmt::format(
        "<path class=\"grid\" d=\"M{:.2f} {:.2f}V{:.2f}\"/>"
        "<text class=\"tick x\" x=\"{:.2f}\" y=\"{:.2f}\">{}</text>",
        x, bottom, bottom + 5.0, x, bottom + 19.0, tick.label);
  }
  text +=
      fmt::format("<path class=\"axis\" d=\"M{:.2f} {:.2f}H{:.2f}\"/>", frame.left, bottom, right);
  double const middle = (frame.top + bottom) / 2.0;
  text += fmt::format("<text class=\"label x\" x=\"{:.2f}\" y=\"{:.2f}\">{}</text>",
                      (frame.left + right) / 2.0, size_.height - 8.0, escaped(x_.label));
  text += fmt::format(
      "<text class=\"label y\" transform=\"translate(16 {:.2f}) rotate(-90)\">{}</text>", middle,
      escaped(y_.label));
  return text;
}

std::string Plot::text() const {
  return opening(title_, size_.width, size_.height) + axes() +
         fmt::format(
             "<svg class=\"inside\" x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"{2:.0f}\" "
             "height=\"{3:.0f}\" "
             "viewBox=\"{0:.0f} {1:.0f} {2:.0f} {3:.0f}\">",
             frame.left - 6.0, frame.top - 6.0, size_.width - frame.left - frame.right + 12.0,
             size_.height - frame.top - frame.bottom + 6.0) +
         drawn_ + "</svg></svg>";
}

std::string bars(std::string const& title, std::string const& axis, std::vector<BarRow> const& rows,
                 double width) {
  constexpr double top = 6.0, bottom = 46.0, each = 30.0;
  auto const room_for = [&](std::string BarRow::*text) {
    constexpr double character = 6.6;
    std::size_t longest = 0;
    for (BarRow const& row : rows) {
      longest = std::max(longest, (row.*text).size());
    }
    return std::min(0.4 * width, 30.0 + character * static_cast<double>(longest));
  };
  double const left = room_for(&BarRow::label), right = room_for(&BarRow::words);
  double const height = top + each * static_cast<double>(rows.size()) + bottom;
  Range range{0.0, 0.0};
  for (BarRow const& row : rows) {
    range.take(row.value);
    for (BarRow::Limit const& limit : row.limits) {
      range.take(limit.value);
    }
  }
  if (range.high <= 0.0) {
    range.take(1.0);
  }
  int const wanted = wanted_ticks(width - left - right, gap_of_x_ticks);
  Axis const scale = settled({.label = axis, .range = range}, wanted);
  auto const across = [&](double value) {
    return left + part_of(scale, value) * (width - left - right);
  };
  std::string text = opening(title, width, height);
  for (Tick const& tick : ticks_of(scale, wanted)) {
    double const x = across(tick.value);
    text += fmt::format(
        "<path class=\"grid\" d=\"M{0:.2f} {1:.2f}V{2:.2f}\"/>"
        "<text class=\"tick x\" x=\"{0:.2f}\" y=\"{3:.2f}\">{4}</text>",
        x, top, height - bottom + 5.0, height - bottom + 19.0, tick.label);
  }
  text += fmt::format("<text class=\"label x\" x=\"{:.2f}\" y=\"{:.2f}\">{}</text>",
                      (left + width - right) / 2.0, height - 8.0, escaped(axis));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    text += bar_row(rows[i], left, top + each * (static_cast<double>(i) + 0.5), across);
  }
  return text + "</svg>";
}

}  // namespace offstage::report
