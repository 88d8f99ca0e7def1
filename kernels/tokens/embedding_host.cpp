#include "kernels/tokens/embedding.hpp"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

#include "base/instantiate.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/host/pointwise_loops.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels {

namespace host {
namespace {

/// target[row_of(r)] += the sum over rows r of source, in order, rounded once.
template <class T, class RowOf>
void add_rows(std::span<T const> source, std::int64_t width, std::span<T> target,
              RowOf const& row_of) {
  auto const rows = static_cast<std::int64_t>(source.size()) / width;
  std::vector<std::int64_t> order(rows);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t left, std::int64_t right) {
    return row_of(left) < row_of(right);
  });
  std::vector<std::int64_t> begins;  // of the runs of equal target rows, and the end
  for (std::int64_t k = 0; k < rows; ++k) {
    if (k == 0 || row_of(order[k]) != row_of(order[k - 1])) {
      begins.push_back(k);
    }
  }
  begins.push_back(rows);

  // One task owns some columns of one target row. Few tokens may own most rows (bytes of text), so
  // columns are split as well and tasks are handed out as threads get free.
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
  std::int64_t const stripes = (width + row_block - 1) / row_block;
  auto const runs = static_cast<std::int64_t>(begins.size()) - 1;
#pragma omp parallel for collapse(2) schedule(dynamic, 8)
  for (std::int64_t run = 0; run < runs; ++run) {
    for (std::int64_t stripe = 0; stripe < stripes; ++stripe) {
      std::int64_t const begin = begins[run];
      std::int64_t const column = stripe * row_block;
      loops.add_rows(target.data() + row_of(order[begin]) * width + column, source.data() + column,
                     width, order.data() + begin, begins[run + 1] - begin,
                     std::min(row_block, width - column));
    }
  }
}

}  // namespace

template <class T>
void embedding_forward(EmbeddingForward<T> const& a) {
  check(a);
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < a.rows; ++r) {
    T const* const row = a.table.data() + a.tokens[r] * a.width;
    T* const out = a.out.data() + r * a.width;
    if (a.positions.empty()) {
      std::copy_n(row, a.width, out);
    } else {
      loops.add(row, a.positions.data() + position_of(a, r) * a.width, out, a.width);
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

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, embedding_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, embedding_backward)

}  // namespace host

template <class T>
void embedding_forward(device::Stream& stream, EmbeddingForward<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::embedding_forward(a);
        } else {
          host::embedding_forward(a);
        }
      },
      [&](auto* native) { cuda::embedding_forward(a, native); });
}

template <class T>
void embedding_backward(device::Stream& stream, EmbeddingBackward<T> const& a) {
  launch_on<T>(
      stream,
      [a] {
        if constexpr (std::is_same_v<T, double>) {
          ref::embedding_backward(a);
        } else {
          host::embedding_backward(a);
        }
      },
      [&](auto* native) { cuda::embedding_backward(a, stream.scratch(), native); });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, embedding_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_TYPES, embedding_backward)

}  // namespace offstage::kernels
