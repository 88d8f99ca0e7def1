#include "kernels/pointwise/swiglu.hpp"

#include "base/instantiate.hpp"
#include "kernels/cuda/packs.cuh"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::cuda {
namespace {

template <class T, int V>
__global__ __launch_bounds__(block_size) void swiglu_forward_kernel(T const* __restrict__ gate_up,
                                                                    T* __restrict__ y,
                                                                    std::int64_t width) {
  std::int64_t const column = pack_of_row() * V;
  if (column >= width) {
    return;
  }
  T const* const gate = gate_up + std::int64_t{blockIdx.x} * 2 * width + column;
  float g[V], u[V];
  load_pack(g, gate);
  load_pack(u, gate + width);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    g[v] *= sigmoid(g[v]) * u[v];
  }
  store_pack(y + std::int64_t{blockIdx.x} * width + column, g);
}

/// d_gate_up may be gate_up.
template <class T, int V>
__global__ __launch_bounds__(block_size) void swiglu_backward_kernel(T const* gate_up,
                                                                     T const* __restrict__ dy,
                                                                     T* d_gate_up,
                                                                     std::int64_t width) {
  std::int64_t const column = pack_of_row() * V;
  if (column >= width) {
    return;
  }
  std::int64_t const gate = std::int64_t{blockIdx.x} * 2 * width + column;
  float g[V], u[V], d[V];
  load_pack(g, gate_up + gate);
  load_pack(u, gate_up + gate + width);
  load_pack(d, dy + std::int64_t{blockIdx.x} * width + column);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    float const part = sigmoid(g[v]);
    float const d_up = d[v] * g[v] * part;
    g[v] = d[v] * u[v] * part * (1.0F + g[v] * (1.0F - part));
    u[v] = d_up;
  }
  store_pack(d_gate_up + gate, g);
  store_pack(d_gate_up + gate + width, u);
}

}  // namespace

template <class T>
void swiglu_forward(SwigluForward<T> const& a, CUstream_st* stream) {
  check(a);
  if (a.rows == 0) {
    return;
  }
  with_packs<T>(are_wide(a.width, a.gate_up.data(), a.y.data()), [&](auto pack) {
    launch(swiglu_forward_kernel<T, pack.value>, pack_grid(a.rows, a.width / pack.value), stream,
           a.gate_up.data(), a.y.data(), a.width);
  });
}

template <class T>
void swiglu_backward(SwigluBackward<T> const& a, CUstream_st* stream) {
  check(a);
  if (a.rows == 0) {
    return;
  }
  bool const aligned = are_wide(a.width, a.gate_up.data(), a.dy.data(), a.d_gate_up.data());
  with_packs<T>(aligned, [&](auto pack) {
    launch(swiglu_backward_kernel<T, pack.value>, pack_grid(a.rows, a.width / pack.value), stream,
           a.gate_up.data(), a.dy.data(), a.d_gate_up.data(), a.width);
  });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, swiglu_forward)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, swiglu_backward)

}  // namespace offstage::kernels::cuda
