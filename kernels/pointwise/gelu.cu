#include "kernels/pointwise/gelu.hpp"

#include "base/instantiate.hpp"
#include "kernels/cuda/packs.cuh"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::cuda {
namespace {

constexpr float twice_root_2_over_pi = 1.5957691216057308F;
constexpr float cubic = 0.044715F;

template <class T, int V>
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
      float const twice_u = twice_root_2_over_pi * value[v] * (1.0F + cubic * value[v] * value[v]);
      value[v] *= sigmoid(twice_u);
    }
    store_pack(y + at * V, value);
  }
}

/// dx may be x.
template <class T, int V>
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
      float const square = cubic * value[v] * value[v];
      float const part = sigmoid(twice_root_2_over_pi * value[v] * (1.0F + square));
      float const slope = twice_root_2_over_pi * (1.0F + 3.0F * square);
      d[v] *= part * (1.0F + value[v] * (1.0F - part) * slope);
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
    launch(gelu_forward_kernel<T, pack.value>, flat_grid(packs), stream, a.x.data(), a.y.data(),
           packs);
  });
}

template <class T>
void gelu_backward(GeluBackward<T> const& a, CUstream_st* stream) {
  check(a);
  bool const aligned = are_wide(std::ssize(a.x), a.x.data(), a.dy.data(), a.dx.data());
  with_packs<T>(aligned, [&](auto pack) {
    std::int64_t const packs = std::ssize(a.x) / pack.value;
    launch(gelu_backward_kernel<T, pack.value>, flat_grid(packs), stream, a.x.data(), a.dy.data(),
           a.dx.data(), packs);
  });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, gelu_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, gelu_backward)

}  // namespace offstage::kernels::cuda
