#include "kernels/linear/matmul.hpp"

#include "base/dtype.hpp"

namespace offstage::kernels::ref {

template <class T, class Out>
void matmul(Matmul<T, Out> const& product) {
  require_sizes(product);
  auto const& [a, b, c, m, n, k, transpose_a, transpose_b, bias] = product;
  bool const a_columns = transpose_a == Transpose::yes;
  bool const b_columns = transpose_b == Transpose::yes;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      Real<T> sum{};
      for (std::int64_t p = 0; p < k; ++p) {
        sum +=
            load(a[a_columns ? p * m + i : i * k + p]) * load(b[b_columns ? j * k + p : p * n + j]);
      }
      Out& to = c[i * n + j];
      to = store<Out>(sum);
      if (bias != nullptr) {
        to = store<Out>(load(to) + load(bias[j]));
      }
    }
  }
}

template void matmul(Matmul<float> const&);
template void matmul(Matmul<double> const&);
template void matmul(Matmul<bfloat16> const&);
template void matmul(Matmul<float16> const&);
template void matmul(Matmul<bfloat16, float> const&);
template void matmul(Matmul<float16, float> const&);

}  // namespace offstage::kernels::ref
