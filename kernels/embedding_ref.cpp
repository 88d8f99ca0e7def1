#include <algorithm>
#include <vector>

#include "embedding.hpp"
#include "pointwise_checks.hpp"

namespace offstage::kernels::ref {

template <class T>
void embedding_forward(EmbeddingForward<T> const& a) {
  check(a);
  for (std::int64_t r = 0; r < a.rows; ++r) {
    std::span<T const> const row = a.table.subspan(a.tokens[r] * a.width, a.width);
    std::copy(row.begin(), row.end(), a.out.begin() + r * a.width);
  }
}

template <class T>
void embedding_backward(EmbeddingBackward<T> const& a) {
  check(a);
  std::vector<Real<T>> sum(a.d_table.size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    sum[i] = load(a.d_table[i]);
  }
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t i = 0; i < a.width; ++i) {
      sum[a.tokens[r] * a.width + i] += load(a.d_out[r * a.width + i]);
    }
  }
  for (std::size_t i = 0; i < sum.size(); ++i) {
    a.d_table[i] = store<T>(sum[i]);
  }
}

template void embedding_forward(EmbeddingForward<double> const&);
template void embedding_forward(EmbeddingForward<float> const&);
template void embedding_forward(EmbeddingForward<bfloat16> const&);
template void embedding_forward(EmbeddingForward<float16> const&);
template void embedding_backward(EmbeddingBackward<double> const&);
template void embedding_backward(EmbeddingBackward<float> const&);
template void embedding_backward(EmbeddingBackward<bfloat16> const&);
template void embedding_backward(EmbeddingBackward<float16> const&);

}  // namespace offstage::kernels::ref
