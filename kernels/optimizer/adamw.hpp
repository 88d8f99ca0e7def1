#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "base/simd.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

struct AdamwStep {
  double learning_rate;   ///< alpha, per step
  double beta1;           ///< in [0, 1)
  double beta2;           ///< in [0, 1)
  double epsilon;         ///< added after the square root; above 0, so that padding stays zero
  double weight_decay;    ///< lambda, multiplied by the learning rate
  double gradient_scale;  ///< multiplies every gradient: 1 / micro-batches, clipping
  std::int64_t step;      ///< t, counted from 1
};

/// Views over part of one subgroup; all have the same length N, in elements, and do not overlap.
/// G is the gradient's type, W the working copy's: float or a 16-bit type, not two different ones.
template <class G, class W>
struct AdamwState {
  std::span<float> parameter;   ///< (N) FP32, updated in place
  std::span<float> momentum;    ///< (N) FP32, first moment, updated in place
  std::span<float> variance;    ///< (N) FP32, second moment, updated in place
  std::span<G const> gradient;  ///< (N), not yet scaled
  std::span<W> working_copy;    ///< (N), receives the new parameter rounded to W
};

/// One AdamW step.
///
///   m <- beta1 m + (1 - beta1) g             v <- beta2 v + (1 - beta2) g^2
///   p <- p - alpha (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + lambda p)
///
/// Source:  Loshchilov & Hutter, arXiv:1711.05101, Algorithm 2, schedule folded into alpha.
/// Memory:  ref and host take host addresses, cuda takes device addresses. Traffic is 24 N bytes
///          for the state, sizeof(G) N and sizeof(W) N beside it: 28 N with 16-bit types. host
///          writes the working copy with non-temporal stores.
/// Order:   ref and host return when done; cuda only enqueues on `stream`, and the views must stay
///          alive until that work completes.
/// Threads: host uses OpenMP; the bits do not depend on the number of threads.
/// Exact:   ref, every instruction set of host, and cuda give the same bits: every product-sum is
///          one fused multiply-add, in the order that adamw_element in adamw_ref.cpp spells out;
///          division and square root round to nearest. A NaN result is stored in canonical form:
///          0x7FC00000 in FP32, 0x7FC0 in bf16, 0x7E00 in fp16. Subnormals are kept.
/// Errors:  PreconditionError if lengths differ or step < 1; CudaError if the launch fails.
namespace ref {
template <class G, class W>
void adamw(AdamwState<G, W> const& state, AdamwStep const& step);
}
namespace host {
/// `simd` beyond best_simd() is a precondition error.
template <class G, class W>
void adamw(AdamwState<G, W> const& state, AdamwStep const& step, Simd simd = best_simd());
}  // namespace host
namespace cuda {
template <class G, class W>
void adamw(AdamwState<G, W> const& state, AdamwStep const& step, CUstream_st* stream);
}

/// Queues the step on `stream`, whose device holds the views: host::adamw on the host backend, where it
/// counts as N updates, cuda::adamw on cuda. Returns before it is done.
/// Errors: PreconditionError as above, at once; UsageError if the stream's backend was not compiled in.
template <class G, class W>
void adamw(device::Stream& stream, AdamwState<G, W> const& state, AdamwStep const& step);

/// What the per-element arithmetic needs, rounded to FP32 once, on the host.
struct AdamwCoefficients {
  float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  float inverse_sqrt_correction2;  ///< 1 / sqrt(1 - beta2^t)
  float epsilon;
  float step_size;  ///< alpha / (1 - beta1^t)
  float decay;      ///< 1 - alpha lambda
};
[[nodiscard]] AdamwCoefficients adamw_coefficients(AdamwStep const& step);

/// Errors: PreconditionError if the views differ in length.
template <class G, class W>
void require_equal_lengths(AdamwState<G, W> const& state);

}  // namespace offstage::kernels
