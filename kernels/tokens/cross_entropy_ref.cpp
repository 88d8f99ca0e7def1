#include "kernels/tokens/cross_entropy.hpp"

#include <algorithm>
#include <cmath>

#include "base/instantiate.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::ref {

template <class T>
void cross_entropy(CrossEntropy<T> const& a) {
  check(a);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::span<Real<T> const> const logits = a.logits.subspan(r * a.stride(), a.vocab);
    if (a.targets[r] == ignored_target) {
      a.loss[r] = 0.0;
      if (!a.d_logits.empty()) {
        std::ranges::fill(a.d_logits.subspan(r * a.stride(), a.vocab), T{});
      }
      continue;
    }
    double const largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (Real<T> const logit : logits) {
      sum += std::exp(logit - largest);
    }
    double const log_sum_exp = std::log(sum) + largest;
    a.loss[r] = log_sum_exp - logits[a.targets[r]];
    if (a.d_logits.empty()) {
      continue;
    }
    for (std::int64_t v = 0; v < a.vocab; ++v) {
      double const probability = std::exp(logits[v] - largest) / sum;
      double const hit = v == a.targets[r] ? 1.0 : 0.0;
      a.d_logits[r * a.stride() + v] =
          store<T>(a.gradient_scale * (probability * a.pull(log_sum_exp) - hit));
    }
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, cross_entropy)

}  // namespace offstage::kernels::ref
