#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/scale.hpp"

namespace offstage::report {

/// `text` as HTML and SVG show it, within an element or a quoted attribute; what no XML may hold is
/// made visible (base/printable.hpp).
[[nodiscard]] std::string escaped(std::string_view text);

struct Point {
  double x{}, y{};
};

struct Axis {
  std::string label;  ///< with its unit
  Range range;
  Spacing spacing = Spacing::linear;
  bool fits = false;  ///< the range stays as it is, else it becomes wide enough for round ends
  double unit = 1.0;  ///< labels count in it
};

/// Size of a picture, in units of which it may become more or fewer pixels.
struct Size {
  double width = 960.0, height = 320.0;
};

enum class Mark { circle, square, diamond, triangle };

/// A picture with two axes, as an SVG element. Colours are classes of the page's style; `look`
/// names some: "c0" and on are runs, "forward" and the like phases, "thin", "bold" and "dashed"
/// lines. Points that are not finite interrupt a line. What lies beyond the axes is cut off.
class Plot {
 public:
  /// `title` is for who cannot see it.
  Plot(std::string title, Axis x, Axis y, Size size = {});

  void line(std::vector<Point> const& points, std::string_view look);
  /// Between two curves that have the same x.
  void band(std::vector<Point> const& low, std::vector<Point> const& high, std::string_view look);
  /// `tip` is shown under a pointer, here and below.
  void mark(Point at, Mark mark, std::string_view look, std::string_view tip);
  void bar(Range x, Range y, std::string_view look, std::string_view tip);

  [[nodiscard]] std::string text() const;

 private:
  [[nodiscard]] double across(double x) const;
  [[nodiscard]] double down(double y) const;
  [[nodiscard]] std::string path(std::vector<Point> const& points) const;
  [[nodiscard]] std::string axes() const;

  std::string title_;
  Axis x_, y_;
  Size size_;
  std::string drawn_;
};

/// A row of Bars.
struct BarRow {
  std::string label;
  std::string look;
  double value{};     ///< not finite: no bar
  std::string words;  ///< beside the bar
  struct Limit {
    double value{};  ///< not finite: none
    std::string look;
    std::string tip;
  };
  std::vector<Limit> limits;  ///< drawn as lines over the bar
};

/// Horizontal bars from 0 on one axis, each with its label and its limits, as an SVG element.
[[nodiscard]] std::string bars(std::string const& title, std::string const& axis,
                               std::vector<BarRow> const& rows, double width = 960.0);

}  // namespace offstage::report
