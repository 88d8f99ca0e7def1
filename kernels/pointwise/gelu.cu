#include "kernels/pointwise/gelu.hpp"

#include "base/instantiate.hpp"
#include "kernels/cuda/packs.cuh"
#include "kernels/pointwise/normal_tail.hpp"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::cuda {
namespace {

constexpr float twice_root_2_over_pi = 1.5957691216057308F;
constexpr float cubic = 0.044715F;

/// The approximation by tanh.
struct Approximate {
  static __device__ float value(float x) {
    return x * sigmoid(twice_root_2_over_pi * x * (1.0F + cubic * x * x));
  }
  static __device__ float slope(float x) {
    float const square = cubic * x * x;
    float const part = sigmoid(twice_root_2_over_pi * x * (1.0F + square));
    float const inner_slope = twice_root_2_over_pi * (1.0F + 3.0F * square);
    return part * (1.0F + x * (1.0F - part) * inner_slope);
  }
};

struct Exact {
  static __device__ float value(float x) { return x * normal_below(x, __expf(-0.5F * x * x)); }
  static __device__ float slope(float x) {
    float const bell = __expf(-0.5F * x * x);
    return normal_below(x, bell) + x * (inverse_root_2_pi * bell);
  }
};

template <class Gelu, class T, int V>
__global__ __launch_bounds__(block_size) void gelu_forward_kernel(T const* __restrict__ x,
                                                                  T* __restrict__ y,
                                                                  std::int64_t packs) {
  std::int64_t const stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < packs;
       at += stride) {
    float value[V];
    load_pack(value, x + at * V);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      value[v] = Gelu::value(value[v]);
    }
    store_pack(y + at * V, value);
  }
}

/// dx may be x.
template <class Gelu, class T, int V>
__global__ __launch_bounds__(block_size) void gelu_backward_kernel(T const* x,
                                                                   T const* __restrict__ dy, T* dx,
                                                                   std::int64_t packs) {
  std::int64_t const stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < packs;
       at += stride) {
    float value[V], d[V];
    load_pack(value, x + at * V);
    load_pack(d, dy + at * V);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      d[v] *= Gelu::slope(value[v]);
    }
    store_pack(dx + at * V, d);
  }
}

}  // namespace

template <class T>
void gelu_forward(GeluForward<T> const& a, CUstream_st* stream) {
  check(a);
  with_packs<T>(are_wide(std::ssize(a.x), a.x.data(), a.y.data()), [&](auto pack) {
    std::int64_t const packs = std::ssize(a.x) / pack.value;
    launch(a.exact ? gelu_forward_kernel<Exact, T, pack.value>
                   : gelu_forward_kernel<Approximate, T, pack.value>,
           flat_grid(packs), stream, a.x.data(), a.y.data(), packs);
  });
}

template <class T>
void gelu_backward(GeluBackward<T> const& a, CUstream_st* stream) {
  check(a);
  bool const aligned = are_wide(std::ssize(a.x), a.x.data(), a.dy.data(), a.dx.data());
  with_packs<T>(aligned, [&](auto pack) {
    std::int64_t const packs = std::ssize(a.x) / pack.value;
    launch(a.exact ? gelu_backward_kernel<Exact, T, pack.value>
                   : gelu_backward_kernel<Approximate, T, pack.value>,
           flat_grid(packs), stream, a.x.data(), a.dy.data(), a.dx.data(), packs);
  });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, gelu_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, gelu_backward)

}  // namespace offstage::kernels::cuda
