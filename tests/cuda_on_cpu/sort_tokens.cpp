#include "kernels/tokens/sort_tokens.hpp"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <iterator>
#include <numeric>

#include "base/error.hpp"
#include "cuda_on_cpu/runtime.hpp"

/// Stands in for cub, which sorts on GPUs alone.
namespace offstage::kernels::cuda {

std::size_t sort_tokens_scratch(std::int64_t rows, std::int64_t vocab) {
  require(rows <= INT_MAX && vocab > 0, "sort_tokens: the rows are too many, or no tokens");
  return static_cast<std::size_t>(rows) * sizeof(std::int32_t);
}

void sort_tokens(TokenSort const& sort, std::span<std::byte> scratch, CUstream_st* stream) {
  std::size_t const count = sort.tokens.size();
  require(sort.sorted.size() == count && sort.order.size() == count,
          "sort_tokens: lengths that differ");
  require(scratch.size() >= sort_tokens_scratch(std::ssize(sort.tokens), sort.vocab),
          "sort_tokens: the scratch memory is too small");
  cuda_on_cpu::enqueue(stream, [sort] {
    std::iota(sort.order.begin(), sort.order.end(), 0);
    std::ranges::stable_sort(sort.order, {}, [&](std::int32_t row) {
      return sort.tokens[static_cast<std::size_t>(row)];
    });
    std::ranges::transform(sort.order, sort.sorted.begin(), [&](std::int32_t row) {
      return sort.tokens[static_cast<std::size_t>(row)];
    });
  });
}

}  // namespace offstage::kernels::cuda
