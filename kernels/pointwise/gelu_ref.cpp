#include "kernels/pointwise/gelu.hpp"

#include <cmath>
#include <cstddef>

#include "base/instantiate.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::ref {
namespace {

constexpr double root_2_over_pi = 0.7978845608028654;
constexpr double cubic = 0.044715;

}  // namespace

template <class T>
void gelu_forward(GeluForward<T> const& a) {
  check(a);
  for (std::size_t i = 0; i < a.x.size(); ++i) {
    double const x = load(a.x[i]);
    double const u = root_2_over_pi * (x + cubic * x * x * x);
    a.y[i] = store<T>(x / 2 * (1 + std::tanh(u)));
  }
}

template <class T>
void gelu_backward(GeluBackward<T> const& a) {
  check(a);
  for (std::size_t i = 0; i < a.x.size(); ++i) {
    double const x = load(a.x[i]);
    double const tanh = std::tanh(root_2_over_pi * (x + cubic * x * x * x));
    double const slope = root_2_over_pi * (1 + 3 * cubic * x * x);
    a.dx[i] = store<T>(load(a.dy[i]) * ((1 + tanh) / 2 + x / 2 * (1 - tanh * tanh) * slope));
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, gelu_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, gelu_backward)

}  // namespace offstage::kernels::ref
