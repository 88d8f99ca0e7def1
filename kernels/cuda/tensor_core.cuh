#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "base/dtype.hpp"

/// Tensor cores, the copies that feed them, reads that stay in order, and fast exponentials: PTX
/// behind functions, because without nvcc tests/cuda_on_cpu gives them a CPU's meaning. Source: PTX
/// ISA, "Matrix multiply-accumulate operation using mma instruction" (m16n8k16), "ldmatrix",
/// "cp.async". All are of a whole warp unless said otherwise.
#ifdef __CUDACC__

namespace offstage::kernels::cuda {
namespace {

/// d (16, 8) += a (16, 16) b (16, 8), summed in FP32. T: bfloat16, float16. With group = lane / 4
/// and pair = 2 (lane % 4), a lane holds
///   a[0], a[1]: rows group, group + 8; columns pair, pair + 1
///   a[2], a[3]: the same rows; columns pair + 8, + 9
///   b[0], b[1]: rows pair, pair + 1 and pair + 8, + 9 of column group
///   d[0], d[1]: row group; columns pair, pair + 1
///   d[2], d[3]: row group + 8; the same columns
/// the lower row or column of a pair in the lower half of the register.
template <class T>
__device__ void multiply_add(float (&d)[4], std::uint32_t const (&a)[4],
                             std::uint32_t const (&b)[2]);
template <>
__device__ inline void multiply_add<bfloat16>(float (&d)[4], std::uint32_t const (&a)[4],
                                              std::uint32_t const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ inline void multiply_add<float16>(float (&d)[4], std::uint32_t const (&a)[4],
                                             std::uint32_t const (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Four (8, 8) matrices of 16-bit elements from shared memory: lanes 8 i to 8 i + 7 name the rows
/// of matrix i, 16 bytes each and so aligned. r[i]: of matrix i, row lane / 4, columns 2 (lane % 4)
/// and the next.
__device__ inline void load_matrices(std::uint32_t (&r)[4], void const* row) {
  auto const address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
/// Loads each matrix transposed: r[i] has column lane / 4, rows 2 (lane % 4) and the next.
__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], void const* row) {
  auto const address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// One thread reads 16 or 8 bytes of global memory, so aligned. The compiler keeps such reads in
/// order, so that several are under way before it waits for the first; reads of its own it moves to
/// where they are used. To the compiler it reads no memory: it is not for what the same kernel
/// wrote before.
template <class Words>
__device__ Words read_in_order(void const* from);
template <>
__device__ inline uint4 read_in_order<uint4>(void const* from) {
  uint4 words{};
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from));
  return words;
}
template <>
__device__ inline uint2 read_in_order<uint2>(void const* from) {
  uint2 words{};
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];\n" : "=r"(words.x), "=r"(words.y) : "l"(from));
  return words;
}

/// One thread begins to copy 16 bytes, aligned on both sides, from global to shared memory. It
/// writes zeros if not `there`, and does not read `from` then.
__device__ inline void copy_async(void* to, void const* from, bool there) {
  auto const address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  int const bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(from),
               "r"(bytes)
               : "memory");
}
/// The same of 4 bytes.
__device__ inline void copy_word_async(void* to, void const* from, bool there) {
  auto const address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  int const bytes = there ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(address), "l"(from),
               "r"(bytes)
               : "memory");
}
/// One thread ends a group of the copies that it began.
__device__ inline void end_copies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
/// One thread waits for all of its groups but the last `pending`; __syncthreads() shows them to the
/// others.
template <int pending>
__device__ inline void await_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

/// Both rounded to nearest even, `low` in the lower half.
template <class T>
__device__ std::uint32_t pack(float low, float high);
template <>
__device__ inline std::uint32_t pack<bfloat16>(float low, float high) {
  std::uint32_t packed{};
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
template <>
__device__ inline std::uint32_t pack<float16>(float low, float high) {
  std::uint32_t packed{};
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// 2^x to about 2 ulp; 0 for -infinity.
__device__ inline float fast_exp2(float x) {
  float y{};
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace
}  // namespace offstage::kernels::cuda

#endif
