#include "kernels/optimizer/adamw.hpp"

#include <cmath>

#include "base/error.hpp"
#include "kernels/optimizer/canonical.hpp"

namespace offstage::kernels {

AdamwCoefficients adamw_coefficients(AdamwStep const& s) {
  require(s.step >= 1, "adamw: step counts from 1");
  auto const t = static_cast<double>(s.step);
  return {
      .gradient_scale = static_cast<float>(s.gradient_scale),
      .beta1 = static_cast<float>(s.beta1),
      .one_minus_beta1 = static_cast<float>(1.0 - s.beta1),
      .beta2 = static_cast<float>(s.beta2),
      .one_minus_beta2 = static_cast<float>(1.0 - s.beta2),
      .inverse_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(s.beta2, t))),
      .epsilon = static_cast<float>(s.epsilon),
      .step_size = static_cast<float>(s.learning_rate / (1.0 - std::pow(s.beta1, t))),
      .decay = static_cast<float>(1.0 - s.learning_rate * s.weight_decay)};
}

template <class G, class W>
void require_equal_lengths(AdamwState<G, W> const& s) {
  std::size_t const count = s.parameter.size();
  require(s.momentum.size() == count && s.variance.size() == count && s.gradient.size() == count &&
              s.working_copy.size() == count,
          "adamw: views differ in length");
}

namespace ref {
namespace {

template <class G, class W>
void adamw_element(AdamwState<G, W> const& s, std::size_t i, AdamwCoefficients const& c) {
  float const g = load(s.gradient[i]) * c.gradient_scale;
  float const m = std::fma(c.beta1, s.momentum[i], c.one_minus_beta1 * g);
  float const v = std::fma(c.beta2, s.variance[i], (c.one_minus_beta2 * g) * g);
  float const d = std::fma(std::sqrt(v), c.inverse_sqrt_correction2, c.epsilon);
  float const p = std::fma(-c.step_size, m / d, s.parameter[i] * c.decay);
  s.parameter[i] = canonical(p);
  s.momentum[i] = canonical(m);
  s.variance[i] = canonical(v);
  s.working_copy[i] = store_canonical<W>(p);
}

}  // namespace

template <class G, class W>
void adamw(AdamwState<G, W> const& state, AdamwStep const& step) {
  require_equal_lengths(state);
  AdamwCoefficients const c = adamw_coefficients(step);
  for (std::size_t i = 0; i < state.parameter.size(); ++i) {
    adamw_element(state, i, c);
  }
}

}  // namespace ref

template void require_equal_lengths(AdamwState<float, float> const&);
template void require_equal_lengths(AdamwState<float, bfloat16> const&);
template void require_equal_lengths(AdamwState<bfloat16, float> const&);
template void require_equal_lengths(AdamwState<bfloat16, bfloat16> const&);
template void require_equal_lengths(AdamwState<float, float16> const&);
template void require_equal_lengths(AdamwState<float16, float> const&);
template void require_equal_lengths(AdamwState<float16, float16> const&);
template void ref::adamw(AdamwState<float, float> const&, AdamwStep const&);
template void ref::adamw(AdamwState<float, bfloat16> const&, AdamwStep const&);
template void ref::adamw(AdamwState<bfloat16, float> const&, AdamwStep const&);
template void ref::adamw(AdamwState<bfloat16, bfloat16> const&, AdamwStep const&);
template void ref::adamw(AdamwState<float, float16> const&, AdamwStep const&);
template void ref::adamw(AdamwState<float16, float> const&, AdamwStep const&);
template void ref::adamw(AdamwState<float16, float16> const&, AdamwStep const&);

}  // namespace offstage::kernels
