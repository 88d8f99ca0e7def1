#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/simd_support.hpp"
#include "normal_values.hpp"

namespace offstage::kernels {

/// Documents of the sequences of a batch; none: each sequence is one.
struct Documents {
  std::vector<std::int32_t> begins, ends;

  Documents() = default;
  /// One sequence for each list of lengths, whose sum is the sequence.
  explicit Documents(std::vector<std::vector<std::int32_t>> const& sequences) {
    for (auto const& lengths : sequences) {
      std::int32_t begin = 0;
      for (std::int32_t const length : lengths) {
        begins.insert(begins.end(), static_cast<std::size_t>(length), begin);
        begin += length;
        ends.insert(ends.end(), static_cast<std::size_t>(length), begin);
      }
    }
  }
  [[nodiscard]] AttentionDocuments view() const { return {begins, ends}; }
};

/// Shapes with documents whose ends lie in tiles of 64 and 128, at their edges and beside them; of
/// one token, and of many tiles; with a window, too.
struct ShapeWithDocuments {
  AttentionShape shape;
  Documents documents;
};
inline std::vector<ShapeWithDocuments> shapes_with_documents() {
  return {{{1, 5, 2, 1, 8}, Documents{{{2, 3}}}},
          {{1, 64, 2, 2, 32}, Documents{{{64}}}},
          {{2, 130, 4, 2, 64}, Documents{{{64, 1, 65}, {130}}}},
          {{1, 200, 2, 1, 48}, Documents{{{63, 65, 1, 1, 70}}}},
          {{3, 129, 2, 2, 128}, Documents{{{128, 1}, {1, 128}, {15, 17, 31, 33, 33}}}},
          {{1, 400, 4, 1, 96}, Documents{{{10, 150, 200, 40}}}},
          {{2, 300, 2, 1, 64, 40}, Documents{{{30, 200, 70}, {250, 50}}}},
          {{1, 257, 2, 1, 80, 129}, Documents{{{7, 250}}}},
          {{1, 70, 1, 1, 16}, Documents{{std::vector<std::int32_t>(70, 1)}}}};
}

/// Shapes whose sequences and heads alone are enough work for some teams, and too little or uneven
/// for others; with windows and documents that hide tiles.
inline std::vector<ShapeWithDocuments> shapes_for_teams() {
  return {{{2, 140, 6, 3, 32}, {}},
          {{1, 200, 4, 1, 32}, {}},
          {{1, 260, 1, 1, 40, 70}, {}},
          {{1, 200, 4, 2, 16}, Documents{{{10, 90, 60, 40}}}},
          {{3, 70, 2, 1, 64}, {}}};
}

/// Inputs and outputs of both directions, on random numbers.
template <class T>
struct Problem {
  explicit Problem(AttentionShape const& s)
      : shape{s},
        qkv{normal_values<T>(1, 1, s.batch * s.sequence * (s.heads + 2 * s.kv_heads) * s.head_dim)},
        out(size(s.batch * s.sequence * s.heads * s.head_dim)),
        d_out{normal_values<T>(1, 2, std::ssize(out))},
        d_qkv(qkv.size()),
        log_sum_exp(size(s.batch * s.heads * s.sequence)) {}
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
  AttentionForward<T> forward() {
    return {.shape = shape,
            .qkv = qkv,
            .out = out,
            .log_sum_exp = log_sum_exp,
            .documents = documents.view()};
  }
  AttentionBackward<T> backward() {
    return {.shape = shape,
            .qkv = qkv,
            .out = out,
            .d_out = d_out,
            .log_sum_exp = log_sum_exp,
            .d_qkv = d_qkv,
            .documents = documents.view()};
  }

  AttentionShape shape;
  Documents documents;
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
