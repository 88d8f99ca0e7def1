#include "kernels/pointwise/gelu.hpp"

#include <cmath>
#include <cstddef>
#include <numbers>

#include "base/instantiate.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::ref {
namespace {

constexpr double root_2_over_pi = 0.7978845608028654;
constexpr double cubic = 0.044715;

/// The value of GELU and its slope at x.
struct Curve {
  double value, slope;
};

Curve exact_curve(double x) {
  double const below = std::erfc(-x / std::numbers::sqrt2) / 2;  // P(X <= x)
  double const density = std::exp(-x * x / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
  return {x * below, below + x * density};
}

Curve approximate_curve(double x) {
  double const tanh = std::tanh(root_2_over_pi * (x + cubic * x * x * x));
  double const slope = root_2_over_pi * (1 + 3 * cubic * x * x);
  return {x / 2 * (1 + tanh), (1 + tanh) / 2 + x / 2 * (1 - tanh * tanh) * slope};
}

}  // namespace

template <class T>
void gelu_forward(GeluForward<T> const& a) {
  check(a);
  for (std::size_t i = 0; i < a.x.size(); ++i) {
    double const x = load(a.x[i]);
    a.y[i] = store<T>((a.exact ? exact_curve(x) : approximate_curve(x)).value);
  }
}

template <class T>
void gelu_backward(GeluBackward<T> const& a) {
  check(a);
  for (std::size_t i = 0; i < a.x.size(); ++i) {
    double const x = load(a.x[i]);
    double const slope = (a.exact ? exact_curve(x) : approximate_curve(x)).slope;
    a.dx[i] = store<T>(load(a.dy[i]) * slope);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, gelu_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, gelu_backward)

}  // namespace offstage::kernels::ref
