#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

/// out[r] = table[tokens[r]], or that plus positions[p], rounded to T once; p is row r's position.
template <class T>
struct EmbeddingForward {
  std::span<std::int32_t const> tokens;  ///< (rows), each in [0, vocab)
  std::span<T const> table;              ///< (vocab, width)
  std::span<T> out;                      ///< (rows, width)
  std::int64_t rows, vocab, width;
  std::span<T const> positions{};  ///< (sequence, width), or empty: none
  std::int64_t sequence = 0;       ///< length of a sequence; not used without positions
  /// (rows) the position of each row, in [0, sequence); empty: r mod sequence.
  std::span<std::int32_t const> position_of{};
};

/// d_table[v] += sum of d_out[r] over the rows r of token v, in row order, summed in FP32 (double
/// for double) together with what d_table holds already (zero, or the tied head's gradient),
/// rounded once. The same for d_positions[t] += sum of d_out[r] over the rows r of position t. Bits
/// do not depend on the number of threads.
template <class T>
struct EmbeddingBackward {
  std::span<std::int32_t const> tokens;
  std::span<T const> d_out;  ///< (rows, width)
  std::span<T> d_table;      ///< (vocab, width), in and out
  std::int64_t rows, vocab, width;
  std::span<T> d_positions{};  ///< (sequence, width), in and out, or empty: none
  std::int64_t sequence = 0;   ///< length of a sequence; not used without positions
  std::span<std::int32_t const> position_of{};  ///< as forward's
};

/// Memory, order, types, errors: as in rmsnorm.hpp. Also PreconditionError for a token or a
/// position out of range, by ref and host: cuda cannot look at its arguments' contents. It adds the
/// rows of a token in another order than theirs, the same every time.
namespace ref {
template <class T>
void embedding_forward(EmbeddingForward<T> const&);
template <class T>
void embedding_backward(EmbeddingBackward<T> const&);
}  // namespace ref
namespace host {
template <class T>
void embedding_forward(EmbeddingForward<T> const&);
template <class T>
void embedding_backward(EmbeddingBackward<T> const&);
}  // namespace host
namespace cuda {
template <class T>
void embedding_forward(EmbeddingForward<T> const&, CUstream_st* stream);
constexpr std::int64_t most_ranked_rows =
    65536;  ///< rows that are ordered by counting; more are sorted (sort_tokens)
/// Bytes that the call needs of scratch memory, aligned to 256. Errors: CudaError, for more rows
/// than those.
[[nodiscard]] std::size_t embedding_backward_scratch(std::int64_t rows, std::int64_t vocab);
template <class T>
void embedding_backward(EmbeddingBackward<T> const&, std::span<std::byte> scratch,
                        CUstream_st* stream);
}  // namespace cuda
template <class T>
void embedding_forward(device::Stream&, EmbeddingForward<T> const&);
template <class T>
void embedding_backward(device::Stream&, EmbeddingBackward<T> const&);

}  // namespace offstage::kernels
