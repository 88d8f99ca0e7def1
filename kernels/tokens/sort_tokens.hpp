#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels::cuda {

/// The rows of tokens in the order of the tokens, those of one token in their own order.
struct TokenSort {
  std::span<std::int32_t const> tokens;  ///< each in [0, vocab)
  std::int64_t vocab;
  std::span<std::int32_t> sorted;  ///< the tokens in order
  std::span<std::int32_t> order;   ///< the row of each
};

/// Bytes that sort_tokens needs of scratch memory. Errors: CudaError, also where there is no GPU.
[[nodiscard]] std::size_t sort_tokens_scratch(std::int64_t rows, std::int64_t vocab);

/// Source:  cub's radix sort, which is stable: there is one result.
/// Memory:  device addresses; scratch is aligned to 256 bytes.
/// Order:   queued on `stream`.
/// Errors:  PreconditionError if lengths differ or are over 2^31 - 1, or if the scratch memory is
///          too small; CudaError.
void sort_tokens(TokenSort const& sort, std::span<std::byte> scratch, CUstream_st* stream);

}  // namespace offstage::kernels::cuda
