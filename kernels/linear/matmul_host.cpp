#include "kernels/linear/matmul.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <type_traits>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/instantiate.hpp"
#include "base/team.hpp"
#include "base/units.hpp"
#include "kernels/host/bf16_unit.hpp"
#include "kernels/host/pointwise_loops.hpp"
#include "kernels/linear/onednn.hpp"
#include "kernels/optimizer/gradient.hpp"
#include "platform/memory/room.hpp"

namespace offstage::kernels {

namespace {

using Strides = dnnl::memory::dims;

/// Of op(a matrix) whose stored rows are `stride` apart.
Strides strides(std::int64_t stride, Transpose transpose) {
  return transpose == Transpose::no ? Strides{stride, 1} : Strides{1, stride};
}

template <class T>
constexpr auto dnnl_type =
    std::is_same_v<T, bfloat16> ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;

enum class Sum { begin, go_on };

/// oneDNN compiles code for a shape that it has not seen, and crashes where it gets no memory for
/// that or for its objects. Measured: 0.8 MiB for a shape, 6.5 MiB for one with odd sides; without
/// AVX-512 the first product compiles all its kernels on any thread of the team, which takes more
/// than 16 MiB.
constexpr Bytes code_bytes = 64 * MiB;

/// Memory that oneDNN works in, ours so that it ends with an exception where there is none. Most
/// measured: 1.7 MiB per thread.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : data_{bytes > 0 ? ::operator new(bytes, page) : nullptr} {}
  [[nodiscard]] void* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t page{4096};
  struct Free {
    void operator()(void* data) const noexcept { ::operator delete(data, page); }
  };
  std::unique_ptr<void, Free> data_;
};

struct Descriptions {
  dnnl::memory::desc a, b, c;
};

template <class T, class Out>
Descriptions describe(Matmul<T, Out> const& product) {
  auto const [m, n, k] = std::array{product.m, product.n, product.k};
  return {.a = {{m, k}, dnnl_type<T>, strides(product.a_stride(), product.transpose_a)},
          .b = {{k, n}, dnnl_type<T>, strides(product.b_stride(), product.transpose_b)},
          .c = {{m, n}, dnnl_type<Out>, strides(product.c_stride(), Transpose::no)}};
}

/// Empty if oneDNN has no such product on this CPU.
dnnl::matmul::primitive_desc find(Descriptions const& of, Sum sum, dnnl::engine const& engine) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (sum == Sum::go_on) {
    dnnl::post_ops add;
    add.append_sum(1.0F);
    attributes.set_post_ops(add);
  }
  constexpr bool allow_empty = true;
  return describe_product(engine, of.a, of.b, of.c, attributes, allow_empty);
}

/// Whether an operand or C is a vector whose elements are apart in memory: oneDNN 3.7 takes them
/// for neighbours.
template <class T, class Out>
bool has_loose_vector(Matmul<T, Out> const& product) {
  bool const a = product.m == 1 && product.transpose_a == Transpose::yes && product.a_stride() > 1;
  bool const b = product.n == 1 && product.transpose_b == Transpose::no && product.b_stride() > 1;
  return a || b || (product.n == 1 && product.c_stride() > 1);
}

/// C = A B of one row. Memory is the bound. oneDNN rearranges B first, which takes half as long
/// again to three times as long.
template <class T, class Out>
void multiply_vector(Matmul<T, Out> const& p) {
  constexpr std::int64_t most = 1024;
  // row_products sums four columns at a time: by whole fours they are the same in any team.
  std::int64_t const columns = std::min(most, round_up(ceil_div(p.n, team_size()), 4));
  PointwiseLoops<T> const& loops = pointwise_loops<T>();
#pragma omp parallel for schedule(static)
  for (std::int64_t first = 0; first < p.n; first += columns) {
    std::int64_t const count = std::min(columns, p.n - first);
    std::array<float, most> sums;
    if (p.transpose_b == Transpose::yes) {
      loops.row_products(p.a, p.b + first * p.b_stride(), p.b_stride(), sums.data(), count, p.k);
    } else {
      loops.weighted_rows(p.a, p.b + first, p.b_stride(), sums.data(), p.k, count);
    }
    std::transform(sums.begin(), sums.begin() + count, p.c + first,
                   [](float sum) { return store<Out>(sum); });
  }
}

template <class T, class Out>
bool is_vector(Matmul<T, Out> const& p) {
  return p.m == 1 && p.transpose_a == Transpose::no && !p.add;
}

/// C = A B, or C += A B with Sum::go_on. False if oneDNN has no such product on this CPU. Nothing
/// is kept between calls: oneDNN caches what it compiles for a shape, and a call without work takes
/// 4 us.
template <class T, class Out>
bool multiply(Matmul<T, Out> const& product, Sum sum) {
  static_assert(!std::is_same_v<T, float16>, "oneDNN has no fp16 products on the CPU");
  if (has_loose_vector(product)) {
    auto plain = product;
    plain.bias = nullptr;
    plain.add = sum == Sum::go_on;
    ref::matmul(plain);
    return true;
  }
  memory::require_room(code_bytes, "oneDNN");
  dnnl::engine const engine{dnnl::engine::kind::cpu, 0};
  auto const of = describe(product);
  auto const found = find(of, sum, engine);
  if (!found) {
    return false;
  }
  dnnl::stream stream{engine};
  auto const scratch_desc = found.scratchpad_desc();
  Scratch const scratch{scratch_desc.get_size()};
  memory::require_room(code_bytes, "oneDNN");
  dnnl::matmul{found}.execute(stream,
                              {{DNNL_ARG_SRC, {of.a, engine, const_cast<T*>(product.a)}},
                               {DNNL_ARG_WEIGHTS, {of.b, engine, const_cast<T*>(product.b)}},
                               {DNNL_ARG_DST, {of.c, engine, product.c}},
                               {DNNL_ARG_SCRATCHPAD, {scratch_desc, engine, scratch.data()}}});
  stream.wait();
  return true;
}

/// Rows of a matrix in memory.
struct Rows {
  std::int64_t count, length;
};

/// Part of A or B as floats, dense, in the order in which it is stored.
template <class T>
void widen(T const* from, std::int64_t stride, Rows rows, float* to) {
  auto const length = static_cast<std::size_t>(rows.length);
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows.count; ++row) {
    host::accumulate<float, T>(
        {{to + row * rows.length, length}, {from + row * stride, length}, true});
  }
}

template <class Out>
void narrow(float const* from, Rows rows, Out* to, std::int64_t stride) {
  auto const length = static_cast<std::size_t>(rows.length);
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows.count; ++row) {
    host::convert({from + row * rows.length, length}, {to + row * stride, length});
  }
}

constexpr std::int64_t tile_m = 512, tile_n = 1024, tile_k = 1024;

/// Floats of the tiles of A, B and C.
struct TileSizes {
  std::int64_t a, b, c;
  [[nodiscard]] std::int64_t all() const { return a + b + c; }
};

template <class T, class Out>
TileSizes tile_sizes(Matmul<T, Out> const& product) {
  auto const [m, n, k] = std::array{std::min(product.m, tile_m), std::min(product.n, tile_n),
                                    std::min(product.k, tile_k)};
  return {.a = m * k, .b = k * n, .c = std::is_same_v<Out, float> ? 0 : m * n};
}

/// Memory for tiles, which each thread that multiplies keeps: malloc kept twice as much of what
/// products gave back.
float* tile_memory(std::int64_t count) {
  struct Kept {
    std::unique_ptr<float[]> floats;
    std::int64_t count = 0;
  };
  thread_local Kept kept;
  if (kept.count < count) {
    kept = {};
    kept = {std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(count)), count};
  }
  return kept.floats.get();
}

/// A product of 16-bit matrices through FP32 copies of tiles, at most 8 MiB of them whatever the
/// shape: a copy of a whole embedding would be no less than its state.
template <class T, class Out>
class WidenedProduct {
 public:
  explicit WidenedProduct(Matmul<T, Out> const& product) : product_{product} {}

  bool run() {
    memory::require_room(code_bytes, "oneDNN");  // OpenMP ends the process where it gets none
    TileSizes const sizes = tile_sizes(product_);
    a_ = tile_memory(sizes.all());
    b_ = a_ + sizes.a;
    c_ = b_ + sizes.b;
    for (std::int64_t i = 0; i < product_.m; i += tile_m) {
      for (std::int64_t j = 0; j < product_.n; j += tile_n) {
        if (!run_tile(i, std::min(tile_m, product_.m - i), j, std::min(tile_n, product_.n - j))) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  bool run_tile(std::int64_t i, std::int64_t m, std::int64_t j, std::int64_t n) {
    auto const& p = product_;
    Matmul<float> tile{a_, b_, nullptr, m, n, 0, p.transpose_a, p.transpose_b};
    Out* const c = p.c + i * p.c_stride() + j;
    if constexpr (std::is_same_v<Out, float>) {
      tile.c = c;
      tile.c_pitch = p.c_stride();
    } else {
      tile.c = c_;
    }
    for (std::int64_t q = 0; q < p.k; q += tile_k) {
      tile.k = std::min(tile_k, p.k - q);
      if (p.transpose_a == Transpose::no) {
        widen(p.a + i * p.a_stride() + q, p.a_stride(), {m, tile.k}, a_);
      } else {
        widen(p.a + q * p.a_stride() + i, p.a_stride(), {tile.k, m}, a_);
      }
      if (p.transpose_b == Transpose::no) {
        widen(p.b + q * p.b_stride() + j, p.b_stride(), {tile.k, n}, b_);
      } else {
        widen(p.b + j * p.b_stride() + q, p.b_stride(), {n, tile.k}, b_);
      }
      if (!multiply(tile, q == 0 && !p.add ? Sum::begin : Sum::go_on)) {
        return false;
      }
    }
    if constexpr (!std::is_same_v<Out, float>) {
      narrow(c_, {m, n}, c, p.c_stride());
    }
    return true;
  }

  Matmul<T, Out> product_;
  float *a_{}, *b_{}, *c_{};
};

/// False if oneDNN cannot.
template <class T, class Out>
bool multiply_somehow(Matmul<T, Out> const& product) {
  auto const sum = product.add ? Sum::go_on : Sum::begin;
  if constexpr (std::is_same_v<T, float16>) {
    return WidenedProduct{product}.run();
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    // Without these instructions oneDNN's bf16 products take four times as long as FP32's.
    bool const by_bf16 = best_bf16_unit() != Bf16Unit::none;
    return (by_bf16 && multiply(product, sum)) || WidenedProduct{product}.run();
  } else {
    return multiply(product, sum);
  }
}

template <class T, class Out>
void multiply_or_throw(Matmul<T, Out> const& product) {
  auto code = ExitCode::internal;
  char const* reason = "not implemented on this CPU";
  try {
    if (multiply_somehow(product)) {
      return;
    }
  } catch (dnnl::error const& error) {
    code = error.status == dnnl_out_of_memory ? ExitCode::other : ExitCode::internal;
    reason = error.status == dnnl_out_of_memory ? "out of memory" : error.message;
  }
  throw Error{code, fmt::format("oneDNN refuses a matrix product of {} x {} x {}: {}", product.m,
                                product.n, product.k, reason)};
}

}  // namespace

namespace host {

template <class T, class Out>
void matmul(Matmul<T, Out> const& product) {
  require_sizes(product);
  if (product.m == 0 || product.n == 0) {
    return;
  }
  if (product.k == 0 && product.add) {
    return;
  }
  if (product.k == 0) {
    for (std::int64_t row = 0; row < product.m; ++row) {
      std::fill_n(product.c + row * product.c_stride(), product.n, Out{});
    }
  } else if (is_vector(product)) {
    multiply_vector(product);
  } else {
    multiply_or_throw(product);
  }
  if (product.bias != nullptr) {
    bias_forward(bias_of(product));
  }
}

std::string matmul_library() {
  auto const* const version = dnnl::version();
  return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
}

template <class T, class Out>
Bytes widened_bytes(Matmul<T, Out> const& product) {
  require_sizes(product);
  constexpr bool can_be = !std::is_same_v<T, float> && !std::is_same_v<T, double>;
  bool const is = can_be && (std::is_same_v<T, float16> || best_bf16_unit() == Bf16Unit::none);
  return is ? tile_sizes(product).all() * static_cast<Bytes>(sizeof(float)) : 0;
}

template <class T, class Out>
Bytes sum_bytes(Matmul<T, Out> const& product) {
  require_sizes(product);
  if constexpr (std::is_same_v<T, bfloat16> && std::is_same_v<Out, bfloat16>) {
    if (best_bf16_unit() != Bf16Unit::none && product.m > 0 && product.n > 0 && product.k > 0) {
      memory::require_room(code_bytes, "oneDNN");
      dnnl::engine const engine{dnnl::engine::kind::cpu, 0};
      auto const found = find(describe(product), Sum::begin, engine);
      Bytes const sums = product.m * product.n * static_cast<Bytes>(sizeof(float));
      bool const keeps = found && std::string_view{found.impl_info_str()}.starts_with("gemm") &&
                         static_cast<Bytes>(found.scratchpad_desc().get_size()) >= sums;
      return keeps ? sums : 0;
    }
  }
  return 0;
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_PRODUCT_TYPES, matmul)
OFFSTAGE_INSTANTIATE(OFFSTAGE_PRODUCT_TYPES, widened_bytes)
OFFSTAGE_INSTANTIATE(OFFSTAGE_PRODUCT_TYPES, sum_bytes)

}  // namespace host

}  // namespace offstage::kernels
