#include "gradient_simd.hpp"

#include "canonical.hpp"

namespace offstage::kernels {

// Plain C++, which the compiler vectorises.

template <Simd simd, class A, class G>
void accumulate_range(A* __restrict__ accumulator, G const* __restrict__ gradient,
                      std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    accumulator[i] = store_canonical<A>(load(accumulator[i]) + load(gradient[i]));
  }
}

template <Simd simd, class To, class From>
void convert_range(To* __restrict__ to, From const* __restrict__ from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = store_canonical<To>(load(from[i]));
  }
}

template <Simd simd, class G>
double chunk_norm(G const* x, std::size_t count) {
  constexpr std::size_t lanes = 16;
  double sums[lanes] = {};
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
  double sum = 0.0;
  for (double const lane : sums) {
    sum += lane;
  }
  return sum == sum ? sum : __builtin_nan("");
}

template void accumulate_range<Simd::OFFSTAGE_SIMD>(float*, float const*, std::size_t);
template void accumulate_range<Simd::OFFSTAGE_SIMD>(float*, bfloat16 const*, std::size_t);
template void accumulate_range<Simd::OFFSTAGE_SIMD>(float*, float16 const*, std::size_t);
template void accumulate_range<Simd::OFFSTAGE_SIMD>(bfloat16*, float const*, std::size_t);
template void accumulate_range<Simd::OFFSTAGE_SIMD>(float16*, float const*, std::size_t);
template void accumulate_range<Simd::OFFSTAGE_SIMD>(bfloat16*, bfloat16 const*, std::size_t);
template void accumulate_range<Simd::OFFSTAGE_SIMD>(float16*, float16 const*, std::size_t);
template void convert_range<Simd::OFFSTAGE_SIMD>(float*, float const*, std::size_t);
template void convert_range<Simd::OFFSTAGE_SIMD>(float*, bfloat16 const*, std::size_t);
template void convert_range<Simd::OFFSTAGE_SIMD>(float*, float16 const*, std::size_t);
template void convert_range<Simd::OFFSTAGE_SIMD>(bfloat16*, float const*, std::size_t);
template void convert_range<Simd::OFFSTAGE_SIMD>(float16*, float const*, std::size_t);
template void convert_range<Simd::OFFSTAGE_SIMD>(bfloat16*, bfloat16 const*, std::size_t);
template void convert_range<Simd::OFFSTAGE_SIMD>(float16*, float16 const*, std::size_t);
template double chunk_norm<Simd::OFFSTAGE_SIMD>(float const*, std::size_t);
template double chunk_norm<Simd::OFFSTAGE_SIMD>(bfloat16 const*, std::size_t);
template double chunk_norm<Simd::OFFSTAGE_SIMD>(float16 const*, std::size_t);

}  // namespace offstage::kernels
