#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/optimizer/optimizer.hpp"
#include "kernels/optimizer/rounding.hpp"

namespace offstage::kernels {

/// A loop over elements.
enum class Rule { adamw, adam, adagrad, rmsprop, rmsprop_momentum, sgd, sgd_momentum, lion };

/// Whether a rule keeps m, and v.
constexpr bool keeps_momentum(Rule rule) {
  return rule != Rule::adagrad && rule != Rule::rmsprop && rule != Rule::sgd;
}
constexpr bool keeps_variance(Rule rule) {
  return rule != Rule::sgd && rule != Rule::sgd_momentum && rule != Rule::lion;
}

/// Numbers of a step that are the same for all elements, rounded to FP32 once, on the host.
struct Coefficients {
  float gradient_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  float inverse_sqrt_correction2;  ///< 1 / sqrt(1 - beta2^t)
  float epsilon;
  float step_size;  ///< alpha; of adamw and adam alpha / (1 - beta1^t)
  float momentum;
  /// Multiplies p: of adamw and lion 1 - alpha lambda where the weight decay applies, else 1.
  float decay;
  /// Multiplies p, is added to g: of the others lambda where the weight decay applies, else 0.
  float l2;
};

/// An optimize() that was checked, as raw pointers, which is what sources compiled for one
/// instruction set may use (base/simd.hpp). Of m, v and scales those that are not kept are null.
struct OptimizerCall {
  Rule rule;
  Moments moments;
  bool split;
  DType gradient_type, working_copy_type;
  std::byte* parameter;  ///< float, or of a split one std::uint16_t
  std::byte* momentum;   ///< float, std::uint16_t, or std::uint8_t
  std::byte* variance;
  float* momentum_scale;
  float* variance_scale;
  std::byte const* gradient;
  std::byte* working_copy;
  std::size_t count;
  std::size_t decayed;  ///< at most count
  std::uint64_t first_block;
  std::uint64_t layer, step, seed;
  Coefficients decayed_by, not_decayed;
};
/// Errors: PreconditionError, as optimize().
[[nodiscard]] OptimizerCall call_of(StateLayout const& layout, OptimizerPart const& part,
                                    OptimizerStep const& step);

/// Elements [begin, begin + count) of the call's; begin a multiple of scale_block.
[[nodiscard]] OptimizerCall part_of(OptimizerCall const& call, std::size_t begin,
                                    std::size_t count);

/// Keeps the keys apart from what else is made of the seed.
constexpr std::uint64_t rounding_stream = 0x726F756E64ULL;
/// The key of the call's block-th block: words of Philox with the key seed ^ rounding_stream, the
/// stream layer * 2^40 ^ step and for a counter the block's place in its layer.
[[nodiscard]] BlockKey key_of(OptimizerCall const& call, std::size_t block);

}  // namespace offstage::kernels
