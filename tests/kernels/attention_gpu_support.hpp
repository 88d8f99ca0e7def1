#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.hpp"
#include "kernels/attention/attention.hpp"
#include "normal_values.hpp"

namespace offstage::kernels {

constexpr std::size_t margin =
    64;  // elements on both sides of every output, which must stay as they are

template <class T>
T canary() {
  return store<T>(-7.25F);
}

/// One problem on the host; outputs stand between margins.
template <class T>
struct Problem {
  explicit Problem(AttentionShape const& s, float size = 1)
      : shape{s},
        qkv{normal_values<T>(1, 1, s.batch * s.sequence * (s.heads + 2 * s.kv_heads) * s.head_dim,
                             [size](float number) { return size * number; })},
        d_out{normal_values<T>(1, 2, s.batch * s.sequence * s.heads * s.head_dim)},
        out(d_out.size() + 2 * margin, canary<T>()),
        d_qkv(qkv.size() + 2 * margin, canary<T>()),
        log_sum_exp(count(s.batch * s.heads * s.sequence) + 2 * margin, canary<float>()) {}
  static std::size_t count(std::int64_t n) { return static_cast<std::size_t>(n); }
  static std::size_t inner(auto const& array) { return array.size() - 2 * margin; }

  [[nodiscard]] AttentionDocuments documents() const { return {begins, ends}; }

  AttentionShape shape;
  std::vector<T> qkv, d_out, out, d_qkv;
  std::vector<float> log_sum_exp;
  std::vector<std::int32_t> begins, ends;  ///< of documents; empty: each sequence is one
};

/// Documents of these lengths, the same in every sequence.
template <class T>
void part(Problem<T>& p, std::vector<std::int32_t> const& lengths) {
  for (std::int64_t b = 0; b < p.shape.batch; ++b) {
    std::int32_t begin = 0;
    for (std::int32_t const length : lengths) {
      p.begins.insert(p.begins.end(), static_cast<std::size_t>(length), begin);
      begin += length;
      p.ends.insert(p.ends.end(), static_cast<std::size_t>(length), begin);
    }
  }
}

/// The reference on the same numbers, in double.
template <class T>
struct Wanted {
  explicit Wanted(Problem<T> const& p)
      : out(p.d_out.size()), d_qkv(p.qkv.size()), log_sum_exp(p.inner(p.log_sum_exp)) {
    auto const widened = [](std::vector<T> const& values) {
      std::vector<double> result(values.size());
      std::transform(values.begin(), values.end(), result.begin(),
                     [](T value) { return double{load(value)}; });
      return result;
    };
    auto const qkv = widened(p.qkv);
    auto const d_out = widened(p.d_out);
    ref::attention_forward<double>({.shape = p.shape,
                                    .qkv = qkv,
                                    .out = out,
                                    .log_sum_exp = log_sum_exp,
                                    .documents = p.documents()});
    ref::attention_backward<double>({.shape = p.shape,
                                     .qkv = qkv,
                                     .out = out,
                                     .d_out = d_out,
                                     .log_sum_exp = log_sum_exp,
                                     .d_qkv = d_qkv,
                                     .documents = p.documents()});
  }
  std::vector<double> out, d_qkv, log_sum_exp;
};

/// Largest difference relative to the largest number wanted; `begin`: of `values` where those of
/// `wanted` begin.
template <class T>
double difference(std::vector<T> const& values, std::vector<double> const& wanted,
                  std::size_t begin) {
  double largest = 0;
  double most = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    largest = std::max(largest, std::abs(wanted[i]));
    double const apart = std::abs(double{load(values[begin + i])} - wanted[i]);
    if (!(apart <= most)) {
      most = apart;
    }  // lets NaN through
  }
  return most / largest;
}

template <class T>
void expect_margins(std::vector<T> const& values, std::size_t begin, std::size_t count) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i < begin || i >= begin + count) {
      ASSERT_TRUE(values[i] == canary<T>()) << "element " << i << " of " << values.size();
    }
  }
}

template <class T>
void expect_close(Problem<T> const& p, Wanted<T> const& wanted, double tolerance,
                  std::size_t skew = 0) {
  SCOPED_TRACE(fmt::format("B {}, T {}, {} heads on {}, of {}", p.shape.batch, p.shape.sequence,
                           p.shape.heads, p.shape.kv_heads, p.shape.head_dim));
  EXPECT_LT(difference(p.out, wanted.out, margin - skew), tolerance);
  EXPECT_LT(difference(p.log_sum_exp, wanted.log_sum_exp, margin), 1e-5);
  EXPECT_LT(difference(p.d_qkv, wanted.d_qkv, margin - skew), tolerance);
  expect_margins(p.out, margin - skew, wanted.out.size());
  expect_margins(p.log_sum_exp, margin, wanted.log_sum_exp.size());
  expect_margins(p.d_qkv, margin - skew, wanted.d_qkv.size());
}

/// Results are rounded once, after products of rounded weights.
template <class T>
constexpr double tolerance = 1e-5;
template <>
constexpr double tolerance<bfloat16> = 0x1p-7;
template <>
constexpr double tolerance<float16> = 0x1p-10;

}  // namespace offstage::kernels
