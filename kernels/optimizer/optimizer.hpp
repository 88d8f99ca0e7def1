#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "base/dtype.hpp"
#include "base/simd.hpp"
#include "base/state_layout.hpp"
#include "device/device.hpp"

struct CUstream_st;  // lets host code name a stream without a CUDA header

namespace offstage::kernels {

/// The update rule. Every gradient g below is scaled by gradient_scale first; lambda is the weight
/// decay.
///
///   adamw     m <- b1 m + (1 - b1) g    v <- b2 v + (1 - b2) g^2
///             p <- p - alpha (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + lambda p)
///   adam      the same without its last term, of g + lambda p in place of g
///   adagrad   g <- g + lambda p    v <- v + g^2    p <- p - alpha g / (sqrt(v) + eps)
///   rmsprop   g <- g + lambda p    v <- b2 v + (1 - b2) g^2    u = g / (sqrt(v) + eps)
///             mu = 0: p <- p - alpha u; else m <- mu m + u, p <- p - alpha m
///   sgd       g <- g + lambda p    mu = 0: p <- p - alpha g; else m <- mu m + g, p <- p - alpha m
///   lion      p <- p - alpha (sign(b1 m + (1 - b1) g) + lambda p)    m <- b2 m + (1 - b2) g
///
/// Source:  adamw: Loshchilov & Hutter, arXiv:1711.05101, Algorithm 2, schedule folded into alpha;
///          adam: the same with its L2 term; lion: Chen et al., arXiv:2302.06675, Algorithm 2; the
///          others as torch.optim has them.
enum class Optimizer { adamw, adam, adagrad, rmsprop, sgd, lion };
[[nodiscard]] std::string_view name_of(Optimizer optimizer);

/// How m and v are kept between steps. In 16 and 8 bits they are rounded stochastically, so that
/// their means stay those of FP32; in 8 bits 256 neighbours share a scale (rounding.hpp). The step
/// itself is in FP32.
enum class Moments { fp32, bf16, int8 };
/// "fp32", "bf16", "8bit".
[[nodiscard]] std::string_view name_of(Moments moments);

/// The planes of a rule's state, in this order: parameter, momentum, variance, their scales; those
/// it has. `has_momentum`: mu > 0; of rmsprop and sgd alone. `split`: the parameter is low16.
/// Errors: UsageError if there are no moments to make smaller.
[[nodiscard]] StateLayout state_layout(Optimizer optimizer, Moments moments, bool has_momentum,
                                       bool split = false);

struct OptimizerStep {
  Optimizer optimizer = Optimizer::adamw;
  double learning_rate{};   ///< alpha, per step
  double beta1{};           ///< in [0, 1)
  double beta2{};           ///< in [0, 1)
  double momentum{};        ///< mu, of rmsprop and sgd; in [0, 1)
  double epsilon{};         ///< added after the square root; above 0, so that padding stays zero
  double weight_decay{};    ///< lambda, multiplied by the learning rate
  double gradient_scale{};  ///< multiplies every gradient: 1 / micro-batches, clipping
  std::int64_t step{};      ///< t, counted from 1
  std::uint64_t seed{};     ///< seed of stochastic rounding
};

using GradientView =
    std::variant<std::span<float const>, std::span<bfloat16 const>, std::span<float16 const>>;
using WorkingCopyView = std::variant<std::span<float>, std::span<bfloat16>, std::span<float16>>;

constexpr std::size_t most_planes = 5;

/// N elements of one layer, in a row; no views overlap.
struct OptimizerPart {
  /// Where each plane of the layout begins, in its order, aligned to its values.
  std::array<std::byte*, most_planes> planes{};
  GradientView gradient;  ///< (N), not yet scaled
  /// (N), receives the new parameter rounded; read first where the parameter is low16.
  WorkingCopyView working_copy;
  std::int64_t elements{};  ///< N; of moments in 8 bits a multiple of scale_block
  std::int64_t decayed{};   ///< the weight decay applies to the first so many
  /// With `first`, names the elements to the generator of stochastic rounding.
  std::uint64_t layer{};
  /// Place of the part's first element in its layer; a multiple of scale_block unless moments are
  /// fp32.
  std::uint64_t first{};
};

/// One step of a part.
///
/// Memory:  ref and host take host addresses, cuda takes device addresses. Traffic is twice the
///          layout's bytes, the gradient and the working copy; that of the split parameter is read
///          as well. host writes the working copy with non-temporal stores.
/// Order:   ref and host return when done; cuda only enqueues on `stream`, and the views must stay
///          alive until that work completes.
/// Threads: host uses OpenMP; the bits do not depend on the number of threads.
/// Exact:   ref, every instruction set of host, and cuda give the same bits: every product-sum is
///          one fused multiply-add, in the order that optimizer_ref.cpp spells out; division and
///          square root round to nearest. Stochastic rounding takes its bits from seed, step,
///          layer, element and plane alone: the same on any number of ranks, paths, subgroups and
///          devices. The working copy is p rounded to nearest: to bf16 with ties away from zero
///          (working_copy.hpp), to fp16 with ties to even. A NaN result is stored in canonical
///          form: 0x7FC00000 in FP32, 0x7FC0 in bf16, 0x7E00 in fp16. A moment that would be
///          subnormal is zero (rounding.hpp), other subnormals are kept. In 8
///          bits a block with a moment that is infinite or NaN has a NaN for its scale, and is all
///          NaN from the next step on.
/// Errors:  PreconditionError if a length, a type or the layout does not fit the step, if step < 1,
///          or `simd` is beyond best_simd(); CudaError if the launch fails.
namespace ref {
void optimize(StateLayout const& layout, OptimizerPart const& part, OptimizerStep const& step);
}
namespace host {
void optimize(StateLayout const& layout, OptimizerPart const& part, OptimizerStep const& step,
              Simd simd = best_simd());
}
namespace cuda {
void optimize(StateLayout const& layout, OptimizerPart const& part, OptimizerStep const& step,
              CUstream_st* stream);
}

/// Queues the step on `stream`, whose device holds the views: host::optimize on the host backend,
/// where it counts as N updates, cuda::optimize on cuda. Returns before it is done.
/// Errors: PreconditionError as above, at once; UsageError if the stream's backend was not compiled
/// in.
void optimize(device::Stream& stream, StateLayout const& layout, OptimizerPart const& part,
              OptimizerStep const& step);

}  // namespace offstage::kernels
