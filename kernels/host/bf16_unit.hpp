#pragma once

namespace offstage::kernels {

/// Unit of a CPU that multiplies bf16 with sums in FP32. A source listed under BF16 of a room is
/// compiled once for each but `none`, inside `namespace OFFSTAGE_SIMD`. The rules of base/simd.hpp
/// for sources under SIMD hold for it too.
enum class Bf16Unit { none, avx512_bf16, amx };

/// The best one that this CPU has, the system lets this process use, and oneDNN takes too, which
/// ONEDNN_MAX_CPU_ISA limits: attention and products go together. `none`: operands are widened.
[[nodiscard]] Bf16Unit best_bf16_unit();
[[nodiscard]] char const* name_of(Bf16Unit unit) noexcept;

}  // namespace offstage::kernels
