#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.hpp"
#include "base/random.hpp"
#include "kernels/attention/attention.hpp"

namespace offstage::kernels {

/// Inputs and outputs of both directions, on random numbers.
template <class T>
struct Problem {
  explicit Problem(AttentionShape const& s)
      : shape{s},
        qkv(size(s.batch * s.sequence * (s.heads + 2 * s.kv_heads) * s.head_dim)),
        out(size(s.batch * s.sequence * s.heads * s.head_dim)),
        d_out(out.size()),
        d_qkv(qkv.size()),
        log_sum_exp(size(s.batch * s.heads * s.sequence)) {
    for (std::size_t i = 0; i < qkv.size(); ++i) {
      qkv[i] = store<T>(normal(1, 1, i));
    }
    for (std::size_t i = 0; i < d_out.size(); ++i) {
      d_out[i] = store<T>(normal(1, 2, i));
    }
  }
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
  AttentionForward<T> forward() { return {shape, qkv, out, log_sum_exp}; }
  AttentionBackward<T> backward() { return {shape, qkv, out, d_out, log_sum_exp, d_qkv}; }

  AttentionShape shape;
  std::vector<T> qkv, out, d_out, d_qkv;
  std::vector<Real<T>> log_sum_exp;
};

template <class T>
Problem<T> solved_by_reference(AttentionShape const& shape) {
  Problem<T> problem{shape};
  ref::attention_forward(problem.forward());
  ref::attention_backward(problem.backward());
  return problem;
}

/// Largest difference relative to the largest entry of `wanted`.
template <class A, class B>
double difference(std::vector<A> const& values, std::vector<B> const& wanted) {
  double largest = 0;
  double most = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    largest = std::max<double>(largest, std::abs(load(wanted[i])));
    double const apart = std::abs(double{load(values[i])} - double{load(wanted[i])});
    if (!(apart <= most)) {
      most = apart;
    }  // lets NaN through
  }
  return most / largest;
}

}  // namespace offstage::kernels
