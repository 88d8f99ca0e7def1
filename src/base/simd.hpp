#pragma once

namespace offstage {

/// Instruction sets that host kernels are compiled for. A source listed under SIMD of a room is
/// compiled once for each, inside `namespace OFFSTAGE_SIMD`. Such a source must not instantiate
/// templates or inline functions of headers that other sources share (the linker keeps one copy and
/// might keep one with AVX-512 in it): it works on raw pointers and its own internal functions.
enum class Simd { baseline, avx2, avx512 };

/// The best one that this CPU runs and ONEDNN_MAX_CPU_ISA allows, the baseline on others than
/// x86-64 (AVX2 stands for AVX2, FMA, BMI2 and F16C; AVX-512 for F, BW, DQ and VL).
[[nodiscard]] Simd best_simd() noexcept;
[[nodiscard]] char const* name_of(Simd simd) noexcept;

}  // namespace offstage
