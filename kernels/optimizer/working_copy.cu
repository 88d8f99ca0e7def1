#include "kernels/optimizer/working_copy.hpp"

#include "kernels/cuda/packs.cuh"
#include "kernels/optimizer/rounding.hpp"

namespace offstage::kernels::cuda {
namespace {

constexpr int widest = wide_together<float, bfloat16>;

template <int V>
__global__ __launch_bounds__(block_size) void split_kernel(float const* __restrict__ parameters,
                                                           std::uint16_t* __restrict__ low,
                                                           bfloat16* __restrict__ copy,
                                                           std::size_t count) {
  for_elements<V>(count, [&](std::size_t i, auto size) {
    auto const from = read_pack<size.value>(parameters + i);
    Pack<std::uint16_t, size.value> lower;
    Pack<bfloat16, size.value> upper;
#pragma unroll
    for (int k = 0; k < size.value; ++k) {
      float const p = device_canonical(from.at[k]);
      lower.at[k] = lower_half(p);
      upper.at[k] = upper_half(p);
    }
    write_pack(low + i, lower);
    write_pack(copy + i, upper);
  });
}

template <int V>
__global__ __launch_bounds__(block_size) void join_kernel(bfloat16 const* __restrict__ copy,
                                                          std::uint16_t const* __restrict__ low,
                                                          float* __restrict__ parameters,
                                                          std::size_t count) {
  for_elements<V>(count, [&](std::size_t i, auto size) {
    auto const upper = read_pack<size.value>(copy + i);
    auto const lower = read_pack<size.value>(low + i);
    Pack<float, size.value> p;
#pragma unroll
    for (int k = 0; k < size.value; ++k) {
      p.at[k] = join(upper.at[k], lower.at[k]);
    }
    write_pack(parameters + i, p);
  });
}

/// Errors: PreconditionError if lengths differ.
void require_equal(std::size_t count, std::size_t low, std::size_t copy) {
  require(count == low && count == copy, "working copy: views differ in length");
}

}  // namespace

void split_parameters(std::span<float const> parameters, std::span<std::uint16_t> low,
                      std::span<bfloat16> copy, CUstream_st* stream) {
  std::size_t const count = parameters.size();
  require_equal(count, low.size(), copy.size());
  if (count == 0) {
    return;
  }
  bool const aligned = are_packs<widest>(parameters.data(), low.data(), copy.data());
  launch(aligned ? split_kernel<widest> : split_kernel<1>,
         flat_grid(static_cast<std::int64_t>(aligned ? count / widest : count)), stream,
         parameters.data(), low.data(), copy.data(), count);
}

void join_parameters(std::span<bfloat16 const> copy, std::span<std::uint16_t const> low,
                     std::span<float> parameters, CUstream_st* stream) {
  std::size_t const count = parameters.size();
  require_equal(count, low.size(), copy.size());
  if (count == 0) {
    return;
  }
  bool const aligned = are_packs<widest>(parameters.data(), low.data(), copy.data());
  launch(aligned ? join_kernel<widest> : join_kernel<1>,
         flat_grid(static_cast<std::int64_t>(aligned ? count / widest : count)), stream,
         copy.data(), low.data(), parameters.data(), count);
}

}  // namespace offstage::kernels::cuda
