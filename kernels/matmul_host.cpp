#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <type_traits>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "gradient.hpp"
#include "matmul.hpp"

namespace offstage::kernels {

namespace {

template <class T>
constexpr bool is_half = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

/// Matrix of `rows` x `columns` as oneDNN sees it; transposed, it is stored by columns.
template <class T>
dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, Transpose transpose) {
  static_assert(!std::is_same_v<T, float16>, "oneDNN has no fp16 products on the CPU");
  constexpr auto type =
      std::is_same_v<T, bfloat16> ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  using Strides = dnnl::memory::dims;
  return {
      {rows, columns}, type, transpose == Transpose::no ? Strides{columns, 1} : Strides{1, rows}};
}

/// False if oneDNN has no such product on this CPU. Nothing is kept between calls: oneDNN caches
/// what it compiles for a shape, and a call without work takes 4 us.
template <class T, class Out>
bool multiply(Matmul<T, Out> const& product) {
  auto const& [a, b, c, m, n, k, transpose_a, transpose_b] = product;
  dnnl::engine const engine{dnnl::engine::kind::cpu, 0};
  auto const a_desc = matrix<T>(m, k, transpose_a);
  auto const b_desc = matrix<T>(k, n, transpose_b);
  auto const c_desc = matrix<Out>(m, n, Transpose::no);
  constexpr bool allow_empty = true;
  dnnl::matmul::primitive_desc const found{{a_desc, b_desc, c_desc}, engine, allow_empty};
  if (!found) {
    return false;
  }
  dnnl::stream stream{engine};
  dnnl::matmul{found}.execute(stream, {{DNNL_ARG_SRC, {a_desc, engine, const_cast<T*>(a)}},
                                       {DNNL_ARG_WEIGHTS, {b_desc, engine, const_cast<T*>(b)}},
                                       {DNNL_ARG_DST, {c_desc, engine, c}}});
  stream.wait();
  return true;
}

using Floats = std::unique_ptr<float[]>;

template <class T>
Floats widen(T const* values, std::int64_t count) {
  auto const size = static_cast<std::size_t>(count);
  auto wide = std::make_unique_for_overwrite<float[]>(size);
  host::accumulate<float, T>({{wide.get(), size}, {values, size}, true});
  return wide;
}

template <class T, class Out>
bool multiply_widened(Matmul<T, Out> const& product) {
  auto const& [a, b, c, m, n, k, transpose_a, transpose_b] = product;
  auto const wide_a = widen(a, m * k);
  auto const wide_b = widen(b, k * n);
  Matmul<float> wide{wide_a.get(), wide_b.get(), nullptr, m, n, k, transpose_a, transpose_b};
  if constexpr (std::is_same_v<Out, float>) {
    wide.c = c;
    return multiply(wide);
  } else {
    auto const size = static_cast<std::size_t>(m * n);
    auto const sums = std::make_unique_for_overwrite<float[]>(size);
    wide.c = sums.get();
    if (!multiply(wide)) {
      return false;
    }
    host::convert({sums.get(), size}, {c, size});
    return true;
  }
}

}  // namespace

namespace host {

template <class T, class Out>
void matmul(Matmul<T, Out> const& product) {
  auto const& [a, b, c, m, n, k, transpose_a, transpose_b] = product;
  require(m >= 0 && n >= 0 && k >= 0, "matmul: negative size");
  if (k == 0) {
    std::fill_n(c, m * n, Out{});
  }
  if (m == 0 || n == 0 || k == 0) {
    return;
  }
  char const* reason = "not implemented on this CPU";
  try {
    if constexpr (!std::is_same_v<T, float16>) {
      if (multiply(product)) {
        return;
      }
    }
    if constexpr (is_half<T>) {
      if (multiply_widened(product)) {
        return;
      }
    }
  } catch (dnnl::error const& error) {
    reason = error.message;
  }
  throw Error{ExitCode::internal,
              fmt::format("oneDNN refuses a matrix product of {} x {} x {}: {}", m, n, k, reason)};
}

template void matmul(Matmul<float> const&);
template void matmul(Matmul<bfloat16> const&);
template void matmul(Matmul<float16> const&);
template void matmul(Matmul<bfloat16, float> const&);
template void matmul(Matmul<float16, float> const&);

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
template void matmul(device::Stream&, Matmul<float16> const&);
template void matmul(device::Stream&, Matmul<bfloat16, float> const&);
template void matmul(device::Stream&, Matmul<float16, float> const&);

}  // namespace offstage::kernels
