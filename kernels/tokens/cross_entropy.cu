#include "kernels/tokens/cross_entropy.hpp"

#include "base/instantiate.hpp"
#include "kernels/cuda/rows.cuh"
#include "kernels/pointwise_checks.hpp"

namespace offstage::kernels::cuda {
namespace {

constexpr int threads_per_row = 1024;
constexpr int packs_at_once = 4;  // read before the first is used

/// A thread's work on a row of logits that begins with a pack of V; a few elements after the last
/// pack come first.
template <int V>
struct LogitRow {
  std::int64_t first;  ///< element of the array with which the row begins
  std::int64_t vocab;
  int packs;
  __device__ LogitRow(std::int64_t begin, std::int64_t width)
      : first{begin}, vocab{width}, packs{static_cast<int>(width / V)} {}
  /// f(element) for the calling thread's element after the packs, if it has one.
  template <class F>
  __device__ void for_tail(F const& f) const {
    std::int64_t const at = pack(packs) + threadIdx.x;
    if (at < first + vocab) {
      f(at);
    }
  }
  [[nodiscard]] __device__ std::int64_t pack(int at) const { return first + std::int64_t{at} * V; }
};

/// The largest of some logits and the sum of exp(logit - largest).
struct Softmax {
  float largest = -INFINITY;
  float sum = 0;
  template <int count>
  __device__ void add(float const (&logits)[count]) {
    float larger = largest;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      larger = fmaxf(larger, logits[i]);
    }
    // Where all are -infinity there is nothing to subtract, and exp makes them 0.
    float const shift = larger == -INFINITY ? 0.0F : larger;
    sum *= __expf(largest - shift);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      sum += __expf(logits[i] - shift);
    }
    largest = larger;
  }
};

template <int V>
__device__ Softmax softmax_of_thread(float const* logits, LogitRow<V> const& row) {
  Softmax softmax;
  row.for_tail([&](std::int64_t at) {
    float const logit[1] = {logits[at]};
    softmax.add(logit);
  });
  for (int begin = static_cast<int>(threadIdx.x); begin < row.packs;
       begin += threads_per_row * packs_at_once) {
    Pack<float, V> read[packs_at_once];
#pragma unroll
    for (int k = 0; k < packs_at_once; ++k) {
      int const at = begin + k * threads_per_row;
      read[k] = read_pack<V>(logits + row.pack(min(at, row.packs - 1)));
    }
    float values[packs_at_once * V];
#pragma unroll
    for (int k = 0; k < packs_at_once; ++k) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        bool const there = begin + k * threads_per_row < row.packs;
        values[k * V + v] = there ? read[k].at[v] : -INFINITY;
      }
    }
    softmax.add(values);
  }
  return softmax;
}

template <class T, int V>
__device__ void fill_with_zeros(T* d_logits, LogitRow<V> const& row) {
  row.for_tail([&](std::int64_t at) { d_logits[at] = T{}; });
  for (int at = static_cast<int>(threadIdx.x); at < row.packs; at += threads_per_row) {
    write_pack(d_logits + row.pack(at), Pack<T, V>{});
  }
}

/// d_logits = factor * exp(logits - largest)
template <class T, int V>
__device__ void store_scaled_exp(float const* logits, LogitRow<V> const& row, float largest,
                                 float factor, T* d_logits) {
  row.for_tail(
      [&](std::int64_t at) { device_store(d_logits[at], factor * __expf(logits[at] - largest)); });
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x); at < row.packs; at += threads_per_row) {
    float values[V];
    load_pack(values, logits + row.pack(at));
#pragma unroll
    for (int v = 0; v < V; ++v) {
      values[v] = factor * __expf(values[v] - largest);
    }
    store_pack(d_logits + row.pack(at), values);
  }
}

/// One block per row: its logits are read twice. The second read comes from the cache if all rows
/// at work fit there: on an H100 with 50 MB of L2 up to vocabularies of some 47,000.
template <class T, int V>
__global__ __launch_bounds__(threads_per_row) void cross_entropy_kernel(
    float const* __restrict__ logits, std::int32_t const* __restrict__ targets,
    double* __restrict__ loss, T* __restrict__ d_logits, std::int64_t vocab, std::int64_t stride,
    double gradient_scale, double z_loss) {
  __shared__ float exchange_largest[1][max_warps];
  __shared__ double exchange_sum[1][max_warps];
  LogitRow<V> const row{blockIdx.x * stride, vocab};
  std::int32_t const target = targets[blockIdx.x];
  if (target == ignored_target) {
    if (threadIdx.x == 0) {
      loss[blockIdx.x] = 0.0;
    }
    if (d_logits != nullptr) {
      fill_with_zeros(d_logits, row);
    }
    return;
  }
  Softmax const own = softmax_of_thread(logits, row);
  float largest[1] = {own.largest};
  combine_block(largest, -INFINITY, exchange_largest, [](float a, float b) { return fmaxf(a, b); });
  // A thread without any logit has -infinity and 0.
  float const rescaled =
      own.largest == -INFINITY ? own.sum : own.sum * __expf(own.largest - largest[0]);
  double sum[1] = {static_cast<double>(rescaled)};
  combine_block(sum, 0.0, exchange_sum, [](double a, double b) { return a + b; });
  float const at_target = logits[row.first + target];
  if (threadIdx.x == 0) {
    loss[blockIdx.x] =
        log(sum[0]) + static_cast<double>(largest[0]) - static_cast<double>(at_target);
  }
  if (d_logits == nullptr) {
    return;
  }
  double const pull =
      z_loss == 0.0 ? 1.0 : 1.0 + 2.0 * z_loss * (log(sum[0]) + static_cast<double>(largest[0]));
  T of_target{};
  if (threadIdx.x == 0) {  // beside the other warps' work, as FP64 takes long
    double const probability = exp(static_cast<double>(at_target - largest[0])) / sum[0];
    device_store(of_target, static_cast<float>(gradient_scale * (probability * pull - 1.0)));
  }
  store_scaled_exp(logits, row, largest[0], static_cast<float>(gradient_scale * pull / sum[0]),
                   d_logits);
  __syncthreads();  // the target's owner has written it, in FP32, where 1 - p would cancel
  if (threadIdx.x == 0) {
    d_logits[row.first + target] = of_target;
  }
}

}  // namespace

template <class T>
void cross_entropy(CrossEntropy<T> const& a, CUstream_st* stream) {
  check_views(a);
  require(a.vocab <= INT_MAX, "cross_entropy: the vocabulary has more than 2^31 - 1 tokens");
  if (a.rows == 0) {
    return;
  }
  auto const launch_with = [&](auto pack) {
    launch(cross_entropy_kernel<T, pack.value>,
           {row_grid(a.rows), static_cast<unsigned>(threads_per_row)}, stream, a.logits.data(),
           a.targets.data(), a.loss.data(), a.d_logits.data(), a.vocab, a.stride(),
           a.gradient_scale, a.z_loss);
  };
  // Packs of as many logits as 16 bytes hold; those of d_logits are then aligned to their own size.
  with_packs<float>(are_wide(a.stride(), a.logits.data(), a.d_logits.data()), launch_with);
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, cross_entropy)

}  // namespace offstage::kernels::cuda
