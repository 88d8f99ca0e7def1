#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "report/plot.hpp"
#include "report/run.hpp"

namespace offstage::report {

/// An entry of a legend.
struct Key {
  enum class Shape { line, box, circle, square, diamond, triangle, limit };
  Shape shape = Shape::line;
  std::string look;
  std::string words;
};
/// Empty for none.
[[nodiscard]] std::string legend(std::vector<Key> const& keys);
/// One line per run if there are several, else none.
[[nodiscard]] std::vector<Key> run_keys(std::vector<Run> const& runs);

/// A <section>: heading, a sentence (HTML) on how to read it, legend and pictures.
[[nodiscard]] std::string section(std::string_view heading, std::string_view words,
                                  std::vector<Key> const& keys, std::string const& pictures);
/// A picture with a caption over it; `half` of the page's width.
[[nodiscard]] std::string figure(std::string_view caption, std::string const& picture,
                                 bool half = false);

/// A figure of each step, in order; x is the step's number.
[[nodiscard]] std::vector<Point> curve(Run const& run,
                                       std::function<double(Step const&)> const& of);
/// The running mean of a curve (base/smoothed.hpp), with a gap where the curve is not finite.
[[nodiscard]] std::vector<Point> smooth(std::vector<Point> const& points);
/// More marks of a kind than these cover each other, and a run of weeks has tens of thousands.
constexpr std::size_t most_marks = 400;
/// Elements of `all`: every so many-th and the last one where there are more than `most`.
template <class T>
[[nodiscard]] std::vector<T> thinned(std::vector<T> const& all, std::size_t most) {
  std::size_t const stride = std::max<std::size_t>(1, (all.size() + most - 1) / most);
  std::vector<T> few;
  for (std::size_t i = 0; i < all.size(); i += stride) {
    few.push_back(all[i]);
  }
  if (!all.empty() && (all.size() - 1) % stride != 0) {
    few.push_back(all.back());
  }
  return few;
}
/// Least and greatest of each of at most `most` stretches of a curve.
struct Envelope {
  std::vector<Point> low, high;
};
[[nodiscard]] Envelope envelope(std::vector<Point> const& points, std::size_t most);

/// From step 0 to the last of all runs.
[[nodiscard]] Axis step_axis(std::vector<Run> const& runs);

/// "1.50 GB", powers of ten, as rates are.
[[nodiscard]] std::string gigabytes(double bytes);

}  // namespace offstage::report
