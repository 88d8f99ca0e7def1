#pragma once

#include <cstdint>
#include <span>

#include "base/chunk.hpp"
#include "base/dtype.hpp"
#include "base/simd.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

/// accumulator[i] <- round(accumulator[i] + gradient[i]), the sum in FP32, rounded to A; `first`
/// means accumulator[i] <- gradient[i] instead. A and G: float or a 16-bit type, not two different
/// ones.
template <class A, class G>
struct Accumulate {
  std::span<A> accumulator;
  std::span<G const> gradient;  ///< same length
  bool first;
};

/// Errors: PreconditionError if the views differ in length.
template <class A, class G>
void require_equal_lengths(Accumulate<A, G> const& call);

/// sums[c] = sum over chunk c (chunk_elements) of double(x)^2: FP64, lane i mod 16 with i counted
/// inside the chunk, lanes added in order 0..15. The last chunk may be short.
template <class G>
struct ChunkNorms {
  std::span<G const> x;
  std::span<double> sums;  ///< one per started chunk
};

/// Errors: PreconditionError if `sums` does not have one element per started chunk.
template <class G>
void require_one_sum_per_chunk(ChunkNorms<G> const& call);

/// Memory:  ref and host take host addresses and return when done; cuda takes device addresses and
///          only enqueues on `stream`: the views must stay alive until that work completes.
/// Threads: host uses OpenMP; the bits depend neither on the number of threads nor on `simd`.
/// Exact:   ref = every instruction set of host = cuda. NaN in canonical form: as in optimizer.hpp,
///          and 0x7FF8000000000000 in FP64.
/// Errors:  PreconditionError if lengths do not match or `simd` is beyond best_simd(); CudaError if
///          a launch fails.
namespace ref {
template <class A, class G>
void accumulate(Accumulate<A, G> const&);
template <class G>
void chunk_norms(ChunkNorms<G> const&);
/// out[i] = in[i] rounded (dtype.hpp, to_bf16 and to_fp16).
void convert(std::span<float const> in, std::span<bfloat16> out);
void convert(std::span<float const> in, std::span<float16> out);
}  // namespace ref
namespace host {
template <class A, class G>
void accumulate(Accumulate<A, G> const&, Simd simd = best_simd());
template <class G>
void chunk_norms(ChunkNorms<G> const&, Simd simd = best_simd());
void convert(std::span<float const> in, std::span<bfloat16> out, Simd simd = best_simd());
void convert(std::span<float const> in, std::span<float16> out, Simd simd = best_simd());
}  // namespace host
namespace cuda {
template <class A, class G>
void accumulate(Accumulate<A, G> const&, CUstream_st* stream);
template <class G>
void chunk_norms(ChunkNorms<G> const&, CUstream_st* stream);
}  // namespace cuda

/// Queued on `stream`, whose device holds the views, sums too; they return before the work is done.
/// Errors: PreconditionError as above, at once; UsageError if the stream's backend was not compiled
/// in.
template <class A, class G>
void accumulate(device::Stream& stream, Accumulate<A, G> const&);
template <class G>
void chunk_norms(device::Stream& stream, ChunkNorms<G> const&);
/// As accumulate with `first`.
void convert(device::Stream& stream, std::span<float const> in, std::span<bfloat16> out);
void convert(device::Stream& stream, std::span<float const> in, std::span<float16> out);

}  // namespace offstage::kernels
