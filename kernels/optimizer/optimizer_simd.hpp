#pragma once

#include "kernels/optimizer/optimizer_call.hpp"

namespace offstage::kernels {

/// One step on the calling thread; keys[b]: of the call's block b. Defined in optimizer_simd.cpp,
/// once for each `simd`.
template <Simd simd>
void optimize_range(OptimizerCall const& call, BlockKey const* keys);

}  // namespace offstage::kernels
