#include "kernels/pointwise/add.hpp"

#include "base/instantiate.hpp"
#include "kernels/cuda/packs.cuh"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::cuda {
namespace {

/// sum may be x or y.
template <class T, int V>
__global__ __launch_bounds__(block_size) void add_kernel(T const* x, T const* y, T* sum,
                                                         std::int64_t packs) {
  std::int64_t const stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < packs;
       at += stride) {
    float value[V], more[V];
    load_pack(value, x + at * V);
    load_pack(more, y + at * V);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      value[v] += more[v];
    }
    store_pack(sum + at * V, value);
  }
}

}  // namespace

template <class T>
void add(Add<T> const& a, CUstream_st* stream) {
  check(a);
  bool const aligned = are_wide(std::ssize(a.x), a.x.data(), a.y.data(), a.sum.data());
  with_packs<T>(aligned, [&](auto pack) {
    std::int64_t const packs = std::ssize(a.x) / pack.value;
    launch(add_kernel<T, pack.value>, flat_grid(packs), stream, a.x.data(), a.y.data(),
           a.sum.data(), packs);
  });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, add)

}  // namespace offstage::kernels::cuda
