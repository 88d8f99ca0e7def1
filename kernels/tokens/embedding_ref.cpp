#include "kernels/tokens/embedding.hpp"

#include <algorithm>
#include <vector>

#include "base/instantiate.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::ref {
namespace {

/// target[row_of(r)] += source[r] for every row r in order, rounded once.
template <class T, class RowOf>
void add_rows(std::span<T const> source, std::int64_t width, std::span<T> target,
              RowOf const& row_of) {
  std::vector<Real<T>> sum(target.size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] = load(target[i]);
  }
  auto const rows = static_cast<std::int64_t>(source.size()) / width;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < width; ++i) {
      sum[row_of(r) * width + i] += load(source[r * width + i]);
    }
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    target[i] = store<T>(sum[i]);
  }
}

}  // namespace

template <class T>
void embedding_forward(EmbeddingForward<T> const& a) {
  check(a);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::span<T const> const row = a.table.subspan(a.tokens[r] * a.width, a.width);
    std::copy(row.begin(), row.end(), a.out.begin() + r * a.width);
    for (std::int64_t i = 0; i < a.width && !a.positions.empty(); ++i) {
      T const position = a.positions[position_of(a, r) * a.width + i];
      a.out[r * a.width + i] = store<T>(load(row[i]) + load(position));
    }
  }
}

template <class T>
void embedding_backward(EmbeddingBackward<T> const& a) {
  check(a);
  add_rows(a.d_out, a.width, a.d_table, [&](std::int64_t r) { return a.tokens[r]; });
  if (!a.d_positions.empty()) {
    add_rows(a.d_out, a.width, a.d_positions, [&](std::int64_t r) { return position_of(a, r); });
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, embedding_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, embedding_backward)

}  // namespace offstage::kernels::ref
