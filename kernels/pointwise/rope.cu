#include "kernels/pointwise/rope.hpp"

#include "base/instantiate.hpp"
#include "kernels/cuda/packs.cuh"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::cuda {
namespace {

constexpr unsigned most_threads = 512;  // of a row; more pairs go in turn

template <int V>
__device__ void load_angles(float (&to)[V], float const* from) {
  constexpr int part = V < wide<float> ? V : wide<float>;
#pragma unroll
  for (int begin = 0; begin < V; begin += part) {
    auto const read = read_pack<part>(from + begin);
#pragma unroll
    for (int v = 0; v < part; ++v) {
      to[begin + v] = read.at[v];
    }
  }
}

/// One block per row, so that its heads share the angles' way to the multiprocessor; one pack of
/// both halves of a head per thread.
template <class T, int V>
__global__ __launch_bounds__(most_threads) void rope_kernel(
    T* __restrict__ qkv, float const* __restrict__ cosine, float const* __restrict__ sine,
    int sequence, int turned_heads, std::int64_t row_length, int half, float sign) {
  T* const row = qkv + std::int64_t{blockIdx.x} * row_length;
  std::int64_t const angles = std::int64_t{blockIdx.x % static_cast<unsigned>(sequence)} * half;
  int const packs = half / V;
  for (int at = static_cast<int>(threadIdx.x); at < turned_heads * packs;
       at += static_cast<int>(blockDim.x)) {
    int const i = at % packs * V;
    T* const head = row + std::int64_t{at / packs} * 2 * half + i;
    float first[V], second[V], c[V], s[V];
    load_pack(first, head);
    load_pack(second, head + half);
    load_angles(c, cosine + angles + i);
    load_angles(s, sine + angles + i);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      float const x = first[v], y = second[v];
      first[v] = x * c[v] - y * (sign * s[v]);
      second[v] = y * c[v] + x * (sign * s[v]);
    }
    store_pack(head, first);
    store_pack(head + half, second);
  }
}

}  // namespace

template <class T>
void rope(Rope<T> const& a, CUstream_st* stream) {
  check(a);
  require(a.sequence <= INT_MAX && (a.heads + a.kv_heads) * a.head_dim <= INT_MAX,
          "rope: a row or the sequence is longer than 2^31 - 1");
  if (a.rows == 0) {
    return;
  }
  std::int64_t const half = a.head_dim / 2, heads = a.heads + a.kv_heads;
  bool const aligned =
      are_wide(half, a.qkv.data()) && are_wide(half, a.cosine.data(), a.sine.data());
  with_packs<T>(aligned, [&](auto pack) {
    unsigned const threads =
        whole_warps(std::min<std::int64_t>(heads * half / pack.value, most_threads));
    launch(rope_kernel<T, pack.value>, {row_grid(a.rows), threads}, stream, a.qkv.data(),
           a.cosine.data(), a.sine.data(), a.sequence, heads,
           (a.heads + 2 * a.kv_heads) * a.head_dim, half, a.inverse ? -1.0F : 1.0F);
  });
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, rope)

}  // namespace offstage::kernels::cuda
