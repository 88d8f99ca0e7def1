#include "kernels/optimizer/gradient_simd.hpp"

#include "base/instantiate.hpp"
#include "kernels/host/simd_half.hpp"
#include "kernels/optimizer/canonical.hpp"
#include "kernels/optimizer/gradient_types.hpp"

namespace offstage::kernels {

namespace {

/// What is widened at a time, so that it stays in the L1 cache; a multiple of the lanes of a norm.
constexpr std::size_t stage_elements = 512;

template <class T>
constexpr bool is_fp16 = __is_same(T, float16);

template <class T>
void widen(T const* from, float* to, std::size_t count) {
  if constexpr (is_fp16<T>) {
    widen_half(from, to, count);
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = load(from[i]);
    }
  }
}

template <class T>
void narrow(float const* from, T* to, std::size_t count) {
  if constexpr (is_fp16<T>) {
    narrow_half(from, to, count);
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = store_canonical<T>(from[i]);
    }
  }
}

/// work(begin, count) for the stages of [0, total).
template <class Work>
[[gnu::always_inline]] inline void for_each_stage(std::size_t total, Work const& work) {
  for (std::size_t begin = 0; begin < total; begin += stage_elements) {
    work(begin, total - begin < stage_elements ? total - begin : stage_elements);
  }
}

constexpr std::size_t lanes = 16;

template <class G>
[[gnu::always_inline]] inline void add_squares(double (&sums)[lanes], G const* x,
                                               std::size_t count) {
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      double const value = load(x[i + lane]);
      sums[lane] += value * value;  // a float's square is exact in double
    }
  }
  for (std::size_t lane = 0; i + lane < count; ++lane) {
    double const value = load(x[i + lane]);
    sums[lane] += value * value;
  }
}

}  // namespace

// Plain C++, which the compiler vectorises, but for float16.

template <Simd simd, class A, class G>
void accumulate_range(A* __restrict__ accumulator, G const* __restrict__ gradient,
                      std::size_t count) {
  if constexpr (is_fp16<A> || is_fp16<G>) {
    for_each_stage(count, [=](std::size_t begin, std::size_t size) {
      float sum[stage_elements], addend[stage_elements];
      widen(accumulator + begin, sum, size);
      widen(gradient + begin, addend, size);
      for (std::size_t i = 0; i < size; ++i) {
        sum[i] += addend[i];
      }
      narrow(sum, accumulator + begin, size);
    });
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      accumulator[i] = store_canonical<A>(load(accumulator[i]) + load(gradient[i]));
    }
  }
}

template <Simd simd, class To, class From>
void convert_range(To* __restrict__ to, From const* __restrict__ from, std::size_t count) {
  if constexpr (is_fp16<To> || is_fp16<From>) {
    for_each_stage(count, [=](std::size_t begin, std::size_t size) {
      float wide[stage_elements];
      widen(from + begin, wide, size);
      narrow(wide, to + begin, size);
    });
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = store_canonical<To>(load(from[i]));
    }
  }
}

template <Simd simd, class G>
double chunk_norm(G const* x, std::size_t count) {
  double sums[lanes] = {};
  if constexpr (is_fp16<G>) {
    for_each_stage(count, [&](std::size_t begin, std::size_t size) {
      float wide[stage_elements];
      widen(x + begin, wide, size);
      add_squares(sums, wide, size);
    });
  } else {
    add_squares(sums, x, count);
  }
  double sum = 0.0;
  for (double const lane : sums) {
    sum += lane;
  }
  return sum == sum ? sum : __builtin_nan("");
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_SUM_TYPES, accumulate_range, Simd::OFFSTAGE_SIMD)
OFFSTAGE_INSTANTIATE(OFFSTAGE_SUM_TYPES, convert_range, Simd::OFFSTAGE_SIMD)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, chunk_norm, Simd::OFFSTAGE_SIMD)

}  // namespace offstage::kernels
