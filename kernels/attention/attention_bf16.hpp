#pragma once

#include "base/dtype.hpp"
#include "kernels/attention/attention_simd.hpp"
#include "kernels/host/bf16_unit.hpp"

namespace offstage::kernels {

/// Attention of bf16 by products of bf16 (internal to the room): what host::attention_* call where
/// best_bf16_unit() is not Bf16Unit::none; the tests try each one that the CPU runs. Weights and
/// their gradients are rounded to bf16 between two products, sums are FP32.
/// Errors: PreconditionError for Bf16Unit::none, else as attention.hpp.
void attention_forward_by(Bf16Unit unit, AttentionForward<bfloat16> const& in);
void attention_backward_by(Bf16Unit unit, AttentionBackward<bfloat16> const& in);

namespace avx512_bf16 {
void attention_forward(AttentionForwardTask<bfloat16> const& task);
void attention_backward(AttentionBackwardTask<bfloat16> const& task);
}  // namespace avx512_bf16
namespace amx {
void attention_forward(AttentionForwardTask<bfloat16> const& task);
void attention_backward(AttentionBackwardTask<bfloat16> const& task);
}  // namespace amx

}  // namespace offstage::kernels
