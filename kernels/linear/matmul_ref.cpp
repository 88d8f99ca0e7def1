#include "kernels/linear/matmul.hpp"

#include "base/dtype.hpp"
#include "base/instantiate.hpp"

namespace offstage::kernels::ref {

template <class T, class Out>
void matmul(Matmul<T, Out> const& product) {
  require_sizes(product);
  bool const a_columns = product.transpose_a == Transpose::yes;
  bool const b_columns = product.transpose_b == Transpose::yes;
  std::int64_t const a_stride = product.a_stride();
  std::int64_t const b_stride = product.b_stride();
  for (std::int64_t i = 0; i < product.m; ++i) {
    for (std::int64_t j = 0; j < product.n; ++j) {
      Real<T> sum{};
      for (std::int64_t p = 0; p < product.k; ++p) {
        sum += load(product.a[a_columns ? p * a_stride + i : i * a_stride + p]) *
               load(product.b[b_columns ? j * b_stride + p : p * b_stride + j]);
      }
      Out& to = product.c[i * product.c_stride() + j];
      to = store<Out>(product.add ? load(to) + sum : sum);
      if (product.bias != nullptr) {
        to = store<Out>(load(to) + load(product.bias[j]));
      }
    }
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_PRODUCT_TYPES, matmul)

}  // namespace offstage::kernels::ref
