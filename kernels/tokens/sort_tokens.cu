#include "kernels/tokens/sort_tokens.hpp"

#include <algorithm>
#include <bit>
#include <climits>
#include <cub/device/device_radix_sort.cuh>

#include "base/error.hpp"
#include "base/units.hpp"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/launch.cuh"

// Not compiled for the CPU, where std::stable_sort stands in (tests/cuda_on_cpu/sort_tokens.cpp).
namespace offstage::kernels::cuda {
namespace {

constexpr Bytes alignment = 256;  // as cub wants it

__global__ __launch_bounds__(block_size) void count_rows_kernel(std::int32_t* rows, int count) {
  auto const stride = static_cast<int>(gridDim.x * block_size);
  for (int i = static_cast<int>(blockIdx.x * block_size + threadIdx.x); i < count; i += stride) {
    rows[i] = i;
  }
}

/// cub's own call, which without memory tells how much it wants.
cudaError_t sort_pairs(void* memory, std::size_t& bytes, TokenSort const& sort,
                       std::int32_t const* rows, CUstream_st* stream) {
  // Unsigned keys, whose upper bits are all zero and need no pass.
  auto const bits =
      std::max(1, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(sort.vocab - 1))));
  return cub::DeviceRadixSort::SortPairs(
      memory, bytes, reinterpret_cast<std::uint32_t const*>(sort.tokens.data()),
      reinterpret_cast<std::uint32_t*>(sort.sorted.data()), rows, sort.order.data(),
      static_cast<int>(sort.tokens.size()), 0, bits, stream);
}

std::size_t bytes_of_rows(std::size_t rows) {
  return static_cast<std::size_t>(
      round_up(static_cast<Bytes>(rows * sizeof(std::int32_t)), alignment));
}

}  // namespace

std::size_t sort_tokens_scratch(std::int64_t rows, std::int64_t vocab) {
  require(rows <= INT_MAX && vocab > 0, "sort_tokens: the rows are too many, or no tokens");
  auto const count = static_cast<std::size_t>(rows);
  std::int32_t* const nowhere = nullptr;
  TokenSort const sort{{nowhere, count}, vocab, {nowhere, count}, {nowhere, count}};
  std::size_t bytes = 0;
  offstage::cuda::check(sort_pairs(nullptr, bytes, sort, nullptr, nullptr));
  return bytes_of_rows(count) + bytes;
}

void sort_tokens(TokenSort const& sort, std::span<std::byte> scratch, CUstream_st* stream) {
  std::size_t const count = sort.tokens.size();
  require(sort.sorted.size() == count && sort.order.size() == count,
          "sort_tokens: lengths that differ");
  require(scratch.size() >= sort_tokens_scratch(std::ssize(sort.tokens), sort.vocab),
          "sort_tokens: the scratch memory is too small");
  if (count == 0) {
    return;
  }
  auto* const rows = reinterpret_cast<std::int32_t*>(scratch.data());
  auto const memory = scratch.subspan(bytes_of_rows(count));
  launch(count_rows_kernel, Grid{blocks_for(count, block_size), block_size}, stream, rows,
         static_cast<int>(count));
  std::size_t bytes = memory.size();
  offstage::cuda::Launch const sorting{"the sort of tokens by cub", stream};
  sorting.check(sort_pairs(memory.data(), bytes, sort, rows, stream));
  sorting.finish();
}

}  // namespace offstage::kernels::cuda
