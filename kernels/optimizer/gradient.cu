#include "kernels/optimizer/gradient.hpp"

#include "base/instantiate.hpp"
#include "kernels/cuda/packs.cuh"
#include "kernels/optimizer/gradient_types.hpp"

namespace offstage::kernels::cuda {
namespace {

constexpr unsigned lanes = 16;  // of a chunk's norm; each has a thread
constexpr std::size_t chunks_per_block = block_size / lanes;
constexpr unsigned all_threads = 0xFFFFFFFFU;  // of a warp
constexpr auto chunk = static_cast<std::size_t>(chunk_elements);

template <bool first, int V, class A, class G>
__global__ __launch_bounds__(block_size) void accumulate_kernel(A* __restrict__ accumulator,
                                                                G const* __restrict__ gradient,
                                                                std::size_t count) {
  for_elements<V>(count, [&](std::size_t i, auto pack) {
    auto const gradients = read_pack<pack.value>(gradient + i);
    Pack<A, pack.value> sums;
    if constexpr (!first) {
      sums = read_pack<pack.value>(accumulator + i);
    }
#pragma unroll
    for (int k = 0; k < pack.value; ++k) {
      float sum = device_load(gradients.at[k]);
      if constexpr (!first) {
        sum = __fadd_rn(device_load(sums.at[k]), sum);
      }
      device_store(sums.at[k], device_canonical(sum));
    }
    write_pack(accumulator + i, sums);
  });
}

template <int V, class A, class G>
void launch_accumulate(Accumulate<A, G> const& call, CUstream_st* stream) {
  std::size_t const count = call.gradient.size();
  launch(call.first ? accumulate_kernel<true, V, A, G> : accumulate_kernel<false, V, A, G>,
         flat_grid(static_cast<std::int64_t>(count / V)), stream, call.accumulator.data(),
         call.gradient.data(), count);
}

/// The sum of squares of every lanes-th of `count` numbers, the first at `from`, in order. Of a
/// whole chunk, some are read before the first is added.
template <class G>
__device__ double squares_of_lane(G const* from, std::size_t count) {
  constexpr std::size_t at_once = 16;
  double sum = 0.0;
  auto const add = [&](G number) {
    double const value = device_load(number);
    sum = __fma_rn(value, value, sum);  // as the host's two roundings: a float's square is exact
  };
  if (count == chunk / lanes) {
#pragma unroll 1
    for (std::size_t i = 0; i < chunk / lanes; i += at_once) {
      G read[at_once];
#pragma unroll
      for (std::size_t k = 0; k < at_once; ++k) {
        read[k] = from[(i + k) * lanes];
      }
#pragma unroll
      for (std::size_t k = 0; k < at_once; ++k) {
        add(read[k]);
      }
    }
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      add(from[i * lanes]);
    }
  }
  return sum;
}

/// Half a warp per chunk, so that a lane's sum stays in one thread.
template <class G>
__global__ __launch_bounds__(block_size) void chunk_norms_kernel(G const* __restrict__ x,
                                                                 double* __restrict__ sums,
                                                                 std::size_t count,
                                                                 std::size_t chunks) {
  unsigned const lane = threadIdx.x % lanes;
  // Threads without a chunk go along: whole warps exchange sums below.
  for (std::size_t base = std::size_t{blockIdx.x} * chunks_per_block; base < chunks;
       base += std::size_t{gridDim.x} * chunks_per_block) {
    std::size_t const at = base + threadIdx.x / lanes;
    std::size_t const begin = at * chunk + lane;
    std::size_t const end = at < chunks ? min((at + 1) * chunk, count) : 0;
    double const own = squares_of_lane(x + begin, begin < end ? (end - begin - 1) / lanes + 1 : 0);
    double sum = 0.0;
    for (unsigned other = 0; other < lanes; ++other) {
      sum = __dadd_rn(sum, __shfl_sync(all_threads, own, static_cast<int>(other), lanes));
    }
    if (lane == 0 && at < chunks) {
      sums[at] = sum == sum ? sum : __longlong_as_double(0x7FF8000000000000LL);
    }
  }
}

}  // namespace

template <class A, class G>
void accumulate(Accumulate<A, G> const& call, CUstream_st* stream) {
  require_equal_lengths(call);
  if (call.gradient.empty()) {
    return;
  }
  constexpr int pack = wide_together<A, G>;
  if (are_packs<pack>(call.accumulator.data(), call.gradient.data())) {
    launch_accumulate<pack>(call, stream);
  } else {
    launch_accumulate<1>(call, stream);
  }
}

template <class G>
void chunk_norms(ChunkNorms<G> const& call, CUstream_st* stream) {
  require_one_sum_per_chunk(call);
  std::size_t const chunks = call.sums.size();
  if (chunks == 0) {
    return;
  }
  launch(chunk_norms_kernel<G>, {blocks_for(chunks, chunks_per_block), block_size}, stream,
         call.x.data(), call.sums.data(), call.x.size(), chunks);
}

OFFSTAGE_INSTANTIATE(OFFSTAGE_SUM_TYPES, accumulate)
OFFSTAGE_INSTANTIATE(OFFSTAGE_RUN_TYPES, chunk_norms)

}  // namespace offstage::kernels::cuda
