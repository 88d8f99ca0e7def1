#include <fmt/format.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "matmul.hpp"

namespace offstage::kernels {

namespace {

template <class T>
constexpr auto element_type =
    std::is_same_v<T, bfloat16> ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;

template <class T>
dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, Transpose transpose) {
  return {{rows, columns},
          element_type<T>,
          transpose == Transpose::no ? dnnl::memory::dims{columns, 1}
                                     : dnnl::memory::dims{1, rows}};
}

template <class T, class Out>
void multiply(Matmul<T, Out> const& product) {
  auto const& [a, b, c, m, n, k, transpose_a, transpose_b] = product;
  dnnl::engine const engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  auto const a_desc = matrix<T>(m, k, transpose_a);
  auto const b_desc = matrix<T>(k, n, transpose_b);
  auto const c_desc = matrix<Out>(m, n, Transpose::no);
  dnnl::matmul const primitive{{dnnl::matmul::desc{a_desc, b_desc, c_desc}, engine}};
  primitive.execute(stream, {{DNNL_ARG_SRC, {a_desc, engine, const_cast<T*>(a)}},
                             {DNNL_ARG_WEIGHTS, {b_desc, engine, const_cast<T*>(b)}},
                             {DNNL_ARG_DST, {c_desc, engine, c}}});
  stream.wait();
}

bool has_bf16_products() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core:
    case dnnl::cpu_isa::avx512_core_vnni:
    case dnnl::cpu_isa::avx512_core_bf16:
    case dnnl::cpu_isa::avx512_core_amx: return true;
    default: return false;
  }
}

std::vector<float> widen(bfloat16 const* values, std::int64_t count) {
  std::vector<float> wide(static_cast<std::size_t>(count));
#pragma omp parallel for simd
  for (std::int64_t i = 0; i < count; ++i) { wide[static_cast<std::size_t>(i)] = to_float(values[i]); }
  return wide;
}

template <class Out>
void multiply_widened(Matmul<bfloat16, Out> const& product) {
  auto const& [a, b, c, m, n, k, transpose_a, transpose_b] = product;
  auto const wide_a = widen(a, m * k);
  auto const wide_b = widen(b, k * n);
  if constexpr (std::is_same_v<Out, float>) {
    multiply<float, float>({wide_a.data(), wide_b.data(), c, m, n, k, transpose_a, transpose_b});
  } else {
    std::vector<float> wide_c(static_cast<std::size_t>(m * n));
    multiply<float, float>(
        {wide_a.data(), wide_b.data(), wide_c.data(), m, n, k, transpose_a, transpose_b});
#pragma omp parallel for simd
    for (std::int64_t i = 0; i < m * n; ++i) { c[i] = to_bf16(wide_c[static_cast<std::size_t>(i)]); }
  }
}

}  // namespace

namespace host {

template <class T, class Out>
void matmul(Matmul<T, Out> const& product) {
  auto const& [a, b, c, m, n, k, transpose_a, transpose_b] = product;
  require(m >= 0 && n >= 0 && k >= 0, "matmul: negative size");
  if (m == 0 || n == 0) { return; }
  if (k == 0) {
    std::fill_n(c, m * n, Out{});
    return;
  }
  try {
    if constexpr (std::is_same_v<T, bfloat16>) {
      if (!has_bf16_products()) { return multiply_widened(product); }
    }
    multiply(product);
  } catch (dnnl::error const& error) {
    throw Error{ExitCode::internal,
                fmt::format("oneDNN refuses a matrix product of {} x {} x {}: {}", m, n, k,
                            error.what())};
  }
}

template void matmul(Matmul<float> const&);
template void matmul(Matmul<bfloat16> const&);
template void matmul(Matmul<bfloat16, float> const&);

}  // namespace host

template <class T, class Out>
void matmul(device::Stream& stream, Matmul<T, Out> const& product) {
  stream.enqueue([product] {
    if constexpr (std::is_same_v<T, double>) {
      ref::matmul(product);
    } else {
      host::matmul(product);
    }
  });
}

template void matmul(device::Stream&, Matmul<float> const&);
template void matmul(device::Stream&, Matmul<double> const&);
template void matmul(device::Stream&, Matmul<bfloat16> const&);
template void matmul(device::Stream&, Matmul<bfloat16, float> const&);

}  // namespace offstage::kernels
