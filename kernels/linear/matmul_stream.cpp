#include <type_traits>

#include "base/dtype.hpp"
#include "base/instantiate.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/linear/matmul.hpp"
#include "platform/cuda/blas_lt.hpp"

namespace offstage::kernels {
namespace {

template <class T>
constexpr auto element = std::is_same_v<T, float>      ? offstage::cuda::Element::f32
                         : std::is_same_v<T, bfloat16> ? offstage::cuda::Element::bf16
                                                       : offstage::cuda::Element::f16;

template <class T, class Out>
offstage::cuda::Product product_of(Matmul<T, Out> const& product) {
  return {.in = element<T>,
          .out = element<Out>,
          .a = product.a,
          .b = product.b,
          .c = product.c,
          .bias = product.bias,
          .m = product.m,
          .n = product.n,
          .k = product.k,
          .transpose_a = product.transpose_a == Transpose::yes,
          .transpose_b = product.transpose_b == Transpose::yes,
          .a_stride = product.a_stride(),
          .b_stride = product.b_stride(),
          .c_stride = product.c_stride(),
          .add = product.add};
}

}  // namespace

namespace cuda {

template <class T, class Out>
void matmul(device::Stream& stream, Matmul<T, Out> const& product) {
  require_sizes(product);
  if (product.m == 0 || product.n == 0 || (product.k == 0 && product.add)) {
    return;
  }
  auto call = product_of(product);
  auto const multiply = [&] {
    return stream.blas().multiply(call, static_cast<CUstream_st*>(stream.native()));
  };
  bool fused = false;
  if (product.k == 0) {
    for (std::int64_t row = 0; row < product.m; ++row) {
      stream.zero(product.c + row * product.c_stride(),
                  product.n * static_cast<Bytes>(sizeof(Out)));
    }
  } else if (fused = multiply(); !fused) {
    call.bias = nullptr;
    require(multiply(), "matmul: a product without a bias is done or an error");
  }
  if (!fused && product.bias != nullptr) {
    bias_forward(stream, bias_of(product));
  }
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_PRODUCT_TYPES, matmul)

}  // namespace cuda

template <class T, class Out>
void matmul(device::Stream& stream, Matmul<T, Out> const& product) {
  require_sizes(product);
  launch_on<T>(
      stream,
      [product] {
        if constexpr (std::is_same_v<T, double>) {
          ref::matmul(product);
        } else {
          host::matmul(product);
        }
      },
      [&](auto* /*native*/) { cuda::matmul(stream, product); }, {.flops = flops_of(product)});
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_ALL_PRODUCT_TYPES, matmul)

}  // namespace offstage::kernels
