#include "kernels/tokens/cross_entropy.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/instantiate.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/host/pointwise_loops.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels {

namespace host {

template <class T>
void cross_entropy(CrossEntropy<T> const& a) {
  check(a);
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < a.rows; ++r) {
    float const* const logits = a.logits.data() + r * a.stride();
    std::int32_t const target = a.targets[r];
    if (target == ignored_target) {
      a.loss[r] = 0.0;
      if (!a.d_logits.empty()) {
        std::fill_n(a.d_logits.data() + r * a.stride(), a.vocab, T{});
      }
      continue;
    }
    float const largest = loops.maximum(logits, a.vocab);
    double const sum = loops.sum_exp(logits, largest, a.vocab);
    double const log_sum_exp = std::log(sum) + static_cast<double>(largest);
    a.loss[r] = log_sum_exp - static_cast<double>(logits[target]);
    if (a.d_logits.empty()) {
      continue;
    }
    T* const d_logits = a.d_logits.data() + r * a.stride();
    double const pull = a.pull(log_sum_exp);
    loops.scaled_exp(logits, largest, static_cast<float>(a.gradient_scale * pull / sum), d_logits,
                     a.vocab);
    double const probability = std::exp(static_cast<double>(logits[target] - largest)) / sum;
    d_logits[target] = store<T>(a.gradient_scale * (probability * pull - 1.0));
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, cross_entropy)

}  // namespace host

template <class T>
void cross_entropy(device::Stream& stream, CrossEntropy<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::cross_entropy(a);
        } else {
          host::cross_entropy(a);
        }
      },
      [&](auto* native) { cuda::cross_entropy(a, native); });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, cross_entropy)

}  // namespace offstage::kernels
