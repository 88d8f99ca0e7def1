#include "kernels/attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/dtype.hpp"
#include "base/instantiate.hpp"
#include "kernels/attention/layout.hpp"

namespace offstage::kernels::ref {

namespace {

template <class A, class B>
auto dot(A const* a, B const* b, std::int64_t count) {
  Real<A> sum{};
  for (std::int64_t c = 0; c < count; ++c) {
    sum += load(a[c]) * load(b[c]);
  }
  return sum;
}

/// target += factor * values
template <class T>
void add_scaled(Real<T>* target, Real<T> factor, T const* values, std::int64_t count) {
  for (std::int64_t c = 0; c < count; ++c) {
    target[c] += factor * load(values[c]);
  }
}

}  // namespace

template <class T>
void attention_forward(AttentionForward<T> const& in) {
  auto const at = AttentionLayout::checked(in);
  auto const [batch, sequence, heads, kv_heads, width, window] = in.shape;
  auto const* const qkv = in.qkv.data();
  auto const scale = 1 / std::sqrt(static_cast<Real<T>>(width));
  std::vector<Real<T>> score(static_cast<std::size_t>(sequence));
  std::vector<Real<T>> sum(static_cast<std::size_t>(width));
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < sequence; ++i) {
        auto const first = at.first_key(in.documents, b, i);
        for (std::int64_t j = first; j <= i; ++j) {
          score[static_cast<std::size_t>(j)] =
              scale * dot(qkv + at.query(b, h, i), qkv + at.key(b, h, j), width);
        }
        auto const largest = *std::max_element(score.begin() + first, score.begin() + i + 1);
        Real<T> total{};
        std::fill(sum.begin(), sum.end(), Real<T>{});
        for (std::int64_t j = first; j <= i; ++j) {
          auto const weight = std::exp(score[static_cast<std::size_t>(j)] - largest);
          total += weight;
          add_scaled(sum.data(), weight, qkv + at.value(b, h, j), width);
        }
        auto* const out = in.out.data() + at.out(b, h, i);
        for (std::int64_t c = 0; c < width; ++c) {
          out[c] = store<T>(sum[static_cast<std::size_t>(c)] / total);
        }
        in.log_sum_exp[static_cast<std::size_t>(at.row(b, h, i))] = largest + std::log(total);
      }
    }
  }
}

template <class T>
void attention_backward(AttentionBackward<T> const& in) {
  auto const at = AttentionLayout::checked(in);
  auto const [batch, sequence, heads, kv_heads, width, window] = in.shape;
  auto const* const qkv = in.qkv.data();
  auto const scale = 1 / std::sqrt(static_cast<Real<T>>(width));
  std::vector<Real<T>> d_qkv(in.d_qkv.size());
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < sequence; ++i) {
        auto const* const query = qkv + at.query(b, h, i);
        auto const* const d_out = in.d_out.data() + at.out(b, h, i);
        auto const log_sum_exp = in.log_sum_exp[static_cast<std::size_t>(at.row(b, h, i))];
        // sum over j of weight_j * dweight_j
        auto const mean = dot(d_out, in.out.data() + at.out(b, h, i), width);
        for (std::int64_t j = at.first_key(in.documents, b, i); j <= i; ++j) {
          auto const* const key = qkv + at.key(b, h, j);
          auto const weight = std::exp(scale * dot(query, key, width) - log_sum_exp);
          auto const d_weight = dot(d_out, qkv + at.value(b, h, j), width);
          auto const d_score = scale * weight * (d_weight - mean);
          add_scaled(d_qkv.data() + at.value(b, h, j), weight, d_out, width);
          add_scaled(d_qkv.data() + at.query(b, h, i), d_score, key, width);
          add_scaled(d_qkv.data() + at.key(b, h, j), d_score, query, width);
        }
      }
    }
  }
  for (std::size_t i = 0; i < d_qkv.size(); ++i) {
    in.d_qkv[i] = store<T>(d_qkv[i]);
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, attention_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, attention_backward)

}  // namespace offstage::kernels::ref
